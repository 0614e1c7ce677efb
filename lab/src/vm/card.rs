//! The suite of one card. The kernel's `mlx5_core` and `mlx5_ib` drive its physical function, and our driver drives two
//! virtual functions.
//!
//! QEMU hides the SR-IOV capability. So the virtual functions are in slots of their own, and the kernel does not know
//! which physical function they belong to. `ip link` in the guest's kernel sets the physical function's interface up
//! and down, which affects the virtual functions. The kernel cannot execute `ip link set PF vf`, so the script sends
//! such settings to the server of the card ([`Line::Card`](super::serial::Line::Card)).

pub(super) mod judge;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::functions::Slots;
use super::guest::KEPT;
use super::image::{Image, Program};
use super::log::lines_of;
use super::suite::{Shown, Ssd, Suite};
use super::{build, interop};
use crate::shell;

/// Name of the server's report of all functions.
const REPORT: &str = "report-card.txt";

/// Returns the suite.
pub fn suite() -> Suite {
    Suite {
        image: Image {
            name: "card",
            modules: &[
                "vfio",
                "vfio_iommu_type1",
                "vfio-pci",
                "ib_uverbs",
                "rdma_ucm",
                "mlx5_core",
                "mlx5_ib",
            ],
            packages: interop::PACKAGES,
            script: concat!(
                include_str!("guest/interop-mlx5"),
                include_str!("guest/ends"),
                include_str!("guest/card")
            ),
            variables: &[],
        },
        slots: Slots::Card,
        ssd: Ssd::None,
        memory: "2G",
        patience: Duration::from_secs(900),
        serve: &[
            "--profile",
            "roce",
            "--vf",
            "0:mac=02:00:00:00:00:01,spoofchk",
            "--vf",
            "1:mac=02:00:00:00:00:02,spoofchk",
            "--report",
            REPORT,
        ],
        beside: None,
        lost: None,
        programs: |_| Ok(vec![("datctl".to_owned(), build::datctl()?)] as Vec<Program>),
        shown: &[
            Shown {
                step: "lost",
                file: REPORT,
                lines: lines_of,
            },
            Shown {
                step: "bundle",
                file: KEPT,
                lines: files_in,
            },
        ],
        judge: judge::judge,
    }
}

/// Returns the names of the files in a tar archive.
fn files_in(archive: &Path) -> Result<Vec<String>> {
    let mut tar = shell::command("tar", &["-tzf"]);
    tar.arg(archive);
    Ok(shell::capture(tar)?.lines().map(str::to_owned).collect())
}
