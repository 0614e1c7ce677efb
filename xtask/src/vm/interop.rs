//! The suites of our driver against another RDMA stack: one link, ours on one side of it, the kernel's on the other.
//!
//! What both sides do is `rping` of librdmacm, which `datctl rping` speaks: Send/Recv, RDMA Read and RDMA Write over
//! connections that the kernel's `rdma_cm` makes, in either role.

use anyhow::{Context, Result, ensure};

use super::Suite;
use super::image::{Image, Program};
use super::report::Step;
use super::stock;

/// What every guest of these has.
const PACKAGES: &[&str] = &[
    "rdmacm-utils",
    "ibverbs-utils",
    "ibverbs-providers",
    "iproute2",
];

fn programs() -> Result<Vec<Program>> {
    Ok(vec![("datctl".to_owned(), super::datctl()?)])
}

/// The kernel's `mlx5_core` and `mlx5_ib` on the other function of the link.
pub fn mlx5() -> Suite {
    Suite {
        image: Image {
            name: "mlx5",
            modules: &[
                "vfio",
                "vfio_iommu_type1",
                "vfio-pci",
                "ib_uverbs",
                "rdma_ucm",
                "mlx5_core",
                "mlx5_ib",
            ],
            packages: PACKAGES,
            script: concat!(
                include_str!("guest/interop-mlx5"),
                include_str!("guest/interop")
            ),
            variables: &[],
        },
        functions: 2,
        serve: &["--profile", "roce", "--pcap", "mlx5.pcapng"],
        programs,
        judge,
    }
}

/// The kernel's software RoCE: `rdma_rxe` on a network device whose frames are the wire of our function.
pub fn software() -> Suite {
    Suite {
        image: Image {
            name: "rxe",
            modules: &[
                "vfio",
                "vfio_iommu_type1",
                "vfio-pci",
                "virtio_net",
                "crc32_generic",
                "rdma_rxe",
                "ib_uverbs",
                "rdma_ucm",
            ],
            packages: PACKAGES,
            script: concat!(
                include_str!("guest/interop-rxe"),
                include_str!("guest/interop")
            ),
            variables: &[],
        },
        functions: 1,
        serve: &["--link", "dgram:wire.sock,net.sock", "--pcap", "rxe.pcapng"],
        programs,
        judge,
    }
}

fn judge(step: &Step) -> Result<String> {
    match step.name.as_str() {
        "bind" | "stock" => {
            ensure!(step.code == Some(0), "failed");
            Ok(step.said.last().cloned().unwrap_or_default())
        }
        "kernel" | "functions" => stock::judge(step),
        _ => both(step),
    }
}

/// Both ends succeeded; the figures of ours.
fn both(step: &Step) -> Result<String> {
    step.line_with("client 0 server 0")?;
    let header = step.said.iter().rposition(|line| line.contains("median"));
    match header {
        Some(header) => {
            let row = step.said.get(header + 2).context("no figures")?;
            let columns: Vec<&str> = row.split_whitespace().collect();
            Ok(columns.join(" "))
        }
        None => Ok(step.line_with("answered ")?.to_owned()),
    }
}
