//! Judges the tables that perftest prints.

use anyhow::{Context, Result, ensure};

use super::report::Step;

/// Returns the figures in the row after perftest's last header.
pub fn figures(step: &Step) -> Result<String> {
    step.both_succeeded()?;
    let header = step
        .said
        .iter()
        .rposition(|line| line.trim_start().starts_with("#bytes"))
        .context("perftest prints no table")?;
    let figures: Vec<&str> = step
        .said
        .get(header + 1)
        .context("perftest prints no figures")?
        .split_whitespace()
        .collect();
    ensure!(figures.len() >= 5, "figures {figures:?}");
    // The columns are size and iterations; then peak and average bandwidth, or shortest, longest and typical time.
    Ok(if step.name.ends_with("lat") {
        format!("{} bytes: typically {} us", figures[0], figures[4])
    } else {
        format!("{} bytes: {} MiB/s", figures[0], figures[3])
    })
}

/// Returns the numbers at the beginning of a line, which are the columns of a row.
pub fn numbers(line: &str) -> Vec<&str> {
    let columns = line.split_whitespace();
    columns
        .take_while(|column| column.parse::<f64>().is_ok())
        .collect()
}

/// Checks that perftest's table has every size up to the largest that the transport supports.
pub fn sweep(step: &Step) -> Result<String> {
    step.both_succeeded()?;
    let header = step.said.iter().rposition(|line| line.contains("#bytes"));
    let header = header.context("perftest prints no table")?;
    // perftest prints messages about the processor's clock between rows, and at the end of some rows.
    let rows = step.said[header + 1..]
        .iter()
        .take_while(|line| !line.contains("-----"))
        .map(|row| numbers(row))
        .filter(|row| row.len() >= 4);
    let rows: Vec<Vec<&str>> = rows.collect();
    let last = rows.last().context("perftest prints no figures")?;
    let largest: u64 = last[0].parse()?;
    let sizes = u64::try_from(rows.len())?;
    let atomic = step.name.contains("atomic");
    let wanted = match step.name.ends_with("UD") {
        // UD is limited to the path MTU, which is 1024 because Ethernet's MTU is 1500.
        true => 1024,
        false if atomic => 8,
        false => 8 << 20,
    };
    ensure!(largest == wanted, "up to {largest} bytes, not {wanted}");
    ensure!(
        atomic || 2_u64.pow(u32::try_from(sizes)?) == wanted,
        "{sizes} sizes up to {wanted}"
    );
    Ok(format!("{sizes} sizes, {largest} bytes: {}", last[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_that_ends_before_the_largest_size_fails() {
        let header =
            "#bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]";
        let rows: Vec<String> = (1..=23)
            .map(|power| format!("{}  10  1.00  2.00  0.1Correlation coefficient", 1 << power))
            .collect();
        let mut said: Vec<&str> = vec!["client 0 server 0", header];
        said.extend(rows.iter().map(String::as_str));
        let whole = sweep(&Step::succeeded("sweep-write-bw", &said));
        assert_eq!(whole.expect("whole"), "23 sizes, 8388608 bytes: 2.00");
        assert!(sweep(&Step::succeeded("sweep-send-bw-UD", &said)).is_err());
        said.pop();
        assert!(sweep(&Step::succeeded("sweep-write-bw", &said)).is_err());
        assert!(sweep(&Step::succeeded("sweep-send-bw-UD", &said[..12])).is_ok());
    }
}
