//! Binding a function to vfio-pci, and back to its driver.
//!
//! `driver_override` is set to the only driver that may bind to the function. Then the function is unbound from its
//! driver, and the bus probes for a driver (`Documentation/ABI/testing/sysfs-bus-pci`). The results of the writes do
//! not show whether binding worked; only the `driver` link does. If binding failed, the previous driver is restored.
//!
//! Before anything is written, binding refuses a function whose interfaces carry the default route or a connection,
//! one whose disks are mounted or in another use, and a physical function whose virtual ones would disappear with its
//! driver. Unbinding refuses a function that a process has open. Both return the commands that undo the writes.
//!
//! The check and the writes are separate steps, and sysfs has no lock for both: a virtual function, a mount or a route
//! that appears after the check and before the write is not noticed. Only root can write these files, and root is
//! trusted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::machine::{Machine, PciFunction};
use super::network::Traffic;
use super::storage::DiskUse;
use crate::vfio::{PciAddress, VfioError};

/// Name of the kernel driver that lets a program in user space open a function.
const VFIO_PCI: &str = "vfio-pci";

/// A writer of sysfs files.
pub trait Writer {
    /// Writes once to an existing file.
    ///
    /// # Errors
    /// Error of the system.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;
}

/// The writer to the sysfs of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Writer for Kernel {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        // The file is opened without creating it: a file that sysfs lacks must not be made.
        let mut file = fs::OpenOptions::new().write(true).open(path)?;
        io::Write::write_all(&mut file, text.as_bytes())
    }
}

/// Result of binding or unbinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The function.
    pub address: PciAddress,
    /// The function's driver before the call.
    pub before: Option<String>,
    /// The function's driver after the call.
    pub now: Option<String>,
    /// Shell commands that undo the change, in order; empty if nothing was changed.
    pub undo: Vec<String>,
}

/// Reason why a function was not bound or unbound.
#[derive(Debug, Error)]
pub enum BindError {
    /// There is no such function.
    #[error("{address}: no such PCI function: {path} is not there (see lspci -D)")]
    NoDevice {
        /// The function.
        address: PciAddress,
        /// Its path in sysfs.
        path: PathBuf,
    },
    /// The function is of a class that this project has no driver for.
    #[error(
        "{address}: class {class:#08x} is neither a network controller nor an NVMe controller; only those are bound"
    )]
    NotDriven {
        /// The function.
        address: PciAddress,
        /// Its class, subclass and interface.
        class: u32,
    },
    /// The module `vfio-pci` is not loaded.
    #[error("{address}: there is no driver vfio-pci: modprobe vfio-pci")]
    NoModule {
        /// The function.
        address: PciAddress,
    },
    /// There is no IOMMU.
    #[error(transparent)]
    NoIommu(Box<VfioError>),
    /// The function's interfaces are in use.
    #[error(
        "{address}: not taken from {driver}, because {}: take the interface down first (ip link set dev {} down), on another way in",
        list(traffic),
        netdevs.join(" down; ip link set dev ")
    )]
    InUse {
        /// The function.
        address: PciAddress,
        /// The driver it has.
        driver: String,
        /// Traffic of the interfaces.
        traffic: Vec<Traffic>,
        /// Its interfaces.
        netdevs: Vec<String>,
    },
    /// The function's disks are in use.
    #[error(
        "{address}: not taken from {driver}, because {}: {}",
        list(uses),
        remedy(uses)
    )]
    DiskInUse {
        /// The function.
        address: PciAddress,
        /// The driver it has.
        driver: String,
        /// Uses of the disks.
        uses: Vec<DiskUse>,
    },
    /// The function's virtual functions would disappear with its driver.
    #[error(
        "{address}: not taken from {driver}, because its {} virtual functions would vanish ({}): bind one of those instead, or remove them first (echo 0 > {})",
        functions.len(),
        list(functions),
        switch.display()
    )]
    VirtualFunctions {
        /// The function.
        address: PciAddress,
        /// The driver it has.
        driver: String,
        /// Its virtual functions.
        functions: Vec<PciAddress>,
        /// The file that removes them.
        switch: PathBuf,
    },
    /// A process has the function open, and the kernel would wait for that process.
    #[error("{address}: process {pid} ({name}) has its IOMMU group {group} open: end it first")]
    Held {
        /// The function.
        address: PciAddress,
        /// The process.
        pid: u32,
        /// The name of the process.
        name: String,
        /// Number of the group.
        group: u32,
    },
    /// The function's driver is not vfio-pci.
    #[error("{address}: bound to {driver}, not to vfio-pci: there is nothing to give back")]
    NotVfio {
        /// The function.
        address: PciAddress,
        /// The driver it has, or "no driver".
        driver: String,
    },
    /// sysfs refused a write.
    #[error("{address}: writing {text:?} to {path}: {source}{}", advice(source))]
    Write {
        /// The function.
        address: PciAddress,
        /// The file.
        path: PathBuf,
        /// The text written.
        text: String,
        /// Error of the system.
        source: io::Error,
    },
    /// All writes succeeded, but the function has another driver than vfio-pci. The previous driver was restored.
    #[error(
        "{address}: bound to {driver}, not to vfio-pci, after all was written (see dmesg); it was given back"
    )]
    NotTaken {
        /// The function.
        address: PciAddress,
        /// The driver that the function had after the writes, or "no driver".
        driver: String,
    },
    /// A step failed, and so did restoring the previous driver.
    #[error("{first}; and giving it back failed too: {then}")]
    Stranded {
        /// The first failure.
        first: Box<BindError>,
        /// The failure of restoring the previous driver.
        then: Box<BindError>,
    },
}

fn list(items: &[impl ToString]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}

/// Returns what to do about the uses of disks.
fn remedy(uses: &[DiskUse]) -> &'static str {
    let is_unknown = |it: &DiskUse| matches!(it, DiskUse::Unknown { .. });
    if uses.iter().all(is_unknown) {
        "only root may; try sudo"
    } else {
        "end that use first"
    }
}

fn advice(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::PermissionDenied {
        ": only root may; try sudo"
    } else {
        " (see dmesg)"
    }
}

fn name(driver: Option<&String>) -> String {
    driver.map_or_else(|| "no driver".to_owned(), Clone::clone)
}

impl Machine {
    /// Binds a function to vfio-pci. Does nothing if the function is bound to vfio-pci already.
    ///
    /// # Errors
    /// [`BindError`]. If a step failed after something was written, the previous driver was restored, or the error is
    /// [`BindError::Stranded`].
    pub fn bind(&self, address: PciAddress, writer: &dyn Writer) -> Result<Bound, BindError> {
        let function = self.there(address)?;
        if function.is_bound_to_vfio() {
            return Ok(Bound {
                address,
                before: function.driver.clone(),
                now: function.driver,
                undo: Vec::new(),
            });
        }
        self.check_free(&function)?;
        let taken = self
            .write(
                writer,
                address,
                &self.device(address).join("driver_override"),
                VFIO_PCI,
            )
            .and_then(|()| self.reprobe(writer, address));
        let now = self.function(address).and_then(|function| function.driver);
        if taken.is_ok() && now.as_deref() == Some(VFIO_PCI) {
            return Ok(Bound {
                address,
                now,
                undo: self.undo_bind(&function),
                before: function.driver,
            });
        }
        let back = self.give_back(&function, writer);
        let first = match taken {
            Err(error) => error,
            Ok(()) => BindError::NotTaken {
                address,
                driver: name(now.as_ref()),
            },
        };
        Err(match back {
            Ok(()) => first,
            Err(error) => BindError::Stranded {
                first: Box::new(first),
                then: Box::new(error),
            },
        })
    }

    /// Unbinds a function from vfio-pci and lets the bus choose its driver.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn unbind(&self, address: PciAddress, writer: &dyn Writer) -> Result<Bound, BindError> {
        let function = self.there(address)?;
        if !function.is_bound_to_vfio() {
            return Err(BindError::NotVfio {
                address,
                driver: name(function.driver.as_ref()),
            });
        }
        // The kernel would wait, without limit, for a process that has the function open.
        if let Some(group) = function.iommu_group
            && let Some(holder) = self.holders(group).into_iter().next()
        {
            return Err(BindError::Held {
                address,
                pid: holder.pid,
                name: holder.name,
                group,
            });
        }
        self.write(
            writer,
            address,
            &self.device(address).join("driver_override"),
            "\n",
        )?;
        self.reprobe(writer, address)?;
        let now = self.function(address).and_then(|function| function.driver);
        Ok(Bound {
            address,
            before: function.driver,
            now,
            undo: vec![format!("datctl bind {address}")],
        })
    }

    fn there(&self, address: PciAddress) -> Result<PciFunction, BindError> {
        self.function(address).ok_or_else(|| BindError::NoDevice {
            address,
            path: self.device(address),
        })
    }

    /// Checks that nothing is lost when the function is unbound from its driver, and that vfio-pci can take it.
    fn check_free(&self, function: &PciFunction) -> Result<(), BindError> {
        let address = function.address;
        if function.kind().is_none() {
            return Err(BindError::NotDriven {
                address,
                class: function.class,
            });
        }
        let driver = name(function.driver.as_ref());
        let traffic = self.traffic(&function.netdevs);
        if !traffic.is_empty() {
            return Err(BindError::InUse {
                address,
                driver,
                traffic,
                netdevs: function.netdevs.clone(),
            });
        }
        let uses = self.disk_uses(function);
        if !uses.is_empty() {
            return Err(BindError::DiskInUse {
                address,
                driver,
                uses,
            });
        }
        let functions = self.virtual_functions(address);
        if !functions.is_empty() {
            return Err(BindError::VirtualFunctions {
                address,
                driver,
                functions,
                switch: self.device(address).join("sriov_numvfs"),
            });
        }
        if !self.path("/sys/bus/pci/drivers").join(VFIO_PCI).exists() {
            return Err(BindError::NoModule { address });
        }
        if function.iommu_group.is_none() {
            return Err(BindError::NoIommu(Box::new(VfioError::NoIommu {
                address: address.to_string(),
            })));
        }
        Ok(())
    }

    fn write(
        &self,
        writer: &dyn Writer,
        address: PciAddress,
        path: &Path,
        text: &str,
    ) -> Result<(), BindError> {
        writer.write(path, text).map_err(|source| BindError::Write {
            address,
            path: path.to_path_buf(),
            text: text.to_owned(),
            source,
        })
    }

    /// Unbinds the function from its driver, if it has one, and lets the bus probe for a driver.
    fn reprobe(&self, writer: &dyn Writer, address: PciAddress) -> Result<(), BindError> {
        let driver = self.device(address).join("driver");
        if driver.exists() {
            self.write(
                writer,
                address,
                &driver.join("unbind"),
                &address.to_string(),
            )?;
        }
        let probe = self.path("/sys/bus/pci/drivers_probe");
        self.write(writer, address, &probe, &address.to_string())
    }

    /// Restores the previous driver.
    fn give_back(&self, before: &PciFunction, writer: &dyn Writer) -> Result<(), BindError> {
        let address = before.address;
        let now = self.function(address);
        if now.as_ref() == Some(before) {
            return Ok(());
        }
        let old = before.driver_override.as_deref().unwrap_or("\n");
        self.write(
            writer,
            address,
            &self.device(address).join("driver_override"),
            old,
        )?;
        match &before.driver {
            Some(driver) if now.and_then(|function| function.driver).as_ref() != Some(driver) => {
                let bind = self.path("/sys/bus/pci/drivers").join(driver).join("bind");
                self.write(writer, address, &bind, &address.to_string())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the commands to undo a binding by hand. They work without this program, and leave the function as it
    /// was.
    fn undo_bind(&self, before: &PciFunction) -> Vec<String> {
        let address = before.address;
        let device = self.device(address);
        let drivers = self.path("/sys/bus/pci/drivers");
        let old = before.driver_override.as_deref().unwrap_or_default();
        let mut undo = vec![
            format!("echo '{old}' > {}/driver_override", device.display()),
            format!("echo {address} > {}/{VFIO_PCI}/unbind", drivers.display()),
        ];
        if let Some(driver) = &before.driver {
            undo.push(format!(
                "echo {address} > {}/{driver}/bind",
                drivers.display()
            ));
        }
        undo
    }
}
