//! The suite of one card: its physical function under the kernel's `mlx5_core` and `mlx5_ib`, two virtual ones under
//! our driver.
//!
//! QEMU hides the SR-IOV capability. So the virtual functions are in slots of their own, and the kernel does not know
//! their physical function. The effect of a physical function's interface on its virtual ones (up, down) is tested
//! here by `ip link`, in the kernel. Settings that `ip link set PF vf` would make are sent by the script to the
//! server of the card ([`Line::Card`](super::serial::Line::Card)).

mod judge;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::guest::{KEPT, lines_of};
use super::image::{Image, Program};
use super::{Shown, Slots, Suite, interop};
use crate::shell;

/// The server's report of every function.
const REPORT: &str = "report-card.txt";

/// The suite.
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
        programs: |_| Ok(vec![("datctl".to_owned(), super::datctl()?)] as Vec<Program>),
        shown: &[
            Shown {
                step: "lost",
                file: REPORT,
                look: lines_of,
            },
            Shown {
                step: "bundle",
                file: KEPT,
                look: files_in,
            },
        ],
        judge: judge::judge,
    }
}

/// Returns the names of the files in an archive.
fn files_in(archive: &Path) -> Result<Vec<String>> {
    let mut tar = shell::command("tar", &["-tzf"]);
    tar.arg(archive);
    Ok(shell::capture(tar)?.lines().map(str::to_owned).collect())
}
