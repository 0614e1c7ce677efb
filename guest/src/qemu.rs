//! QEMU's command line: a machine whose PCI slots have functions that other processes serve.
//!
//! ```text
//!   bus 0 (pcie.0) --- root port 3 --- bus 1 --- function 0
//!                  \-- root port 4 --- bus 2 --- function 1     ...
//! ```
//!
//! Each function is behind a root port of its own, because QEMU would show a function on the root bus as an integrated
//! endpoint, which has no link. All memory is one memfd, which the servers of the functions map for DMA.

use std::path::Path;
use std::process::Command;

/// Device number, on bus 0, of the root port of the first function. The root ports of the other functions follow. Each
/// function is device 0 of the bus below its root port; these buses are 1, 2 and so on.
const FIRST_SLOT: u8 = 3;
/// Time that QEMU waits for an answer of a function's server before it considers the function gone, in milliseconds.
/// QEMU's default is five seconds, which is too short on a busy machine.
const PATIENCE_MS: u32 = 120_000;

/// Way in which the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Execution by the processor.
    Kvm,
    /// Emulation in software.
    Tcg,
}

impl Accelerator {
    /// Returns the best accelerator of this machine. KVM requires VMX or SVM, because without them a machine may still
    /// have a `/dev/kvm` that cannot run a stock kernel.
    pub fn best() -> Self {
        let opens = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm");
        let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        match opens.is_ok() && virtualises(&flags) {
            true => Self::Kvm,
            false => Self::Tcg,
        }
    }
}

/// Returns whether /proc/cpuinfo lists VMX or SVM.
fn virtualises(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| {
        line.split_whitespace()
            .any(|flag| matches!(flag, "vmx" | "svm"))
    })
}

/// A virtual machine.
#[derive(Clone, Copy, Debug)]
pub struct Qemu<'a> {
    /// Way in which the guest's instructions are executed.
    pub accelerator: Accelerator,
    /// True to place an emulated Intel IOMMU between the functions and the guest's memory.
    pub iommu: bool,
    /// Memory size in QEMU's notation, such as 2G.
    pub memory: &'a str,
    /// Path of the kernel image.
    pub kernel: &'a Path,
    /// Path of the initial file system.
    pub initramfs: &'a Path,
    /// Kernel parameters.
    pub append: &'a str,
}

impl Qemu<'_> {
    /// Adds the machine and the functions at these sockets to a command of QEMU. The caller adds serial ports and
    /// other devices.
    pub fn add_to(&self, command: &mut Command, functions: &[impl AsRef<Path>]) {
        let (accelerator, processor) = match self.accelerator {
            Accelerator::Kvm => ("kvm", "host"),
            Accelerator::Tcg => ("tcg,thread=multi", "max"),
        };
        command.args(["-accel", accelerator, "-cpu", processor, "-smp", "2"]);
        // QEMU's IOMMU remaps interrupts, so QEMU and not KVM must emulate the interrupt chip.
        let chip = if self.iommu {
            ",kernel-irqchip=off"
        } else {
            ""
        };
        command.args(["-machine", &format!("q35,memory-backend=mem{chip}")]);
        let memory = format!("memory-backend-memfd,id=mem,size={},share=on", self.memory);
        command.args(["-object", &memory]);
        if self.iommu {
            command.args(["-device", "intel-iommu,caching-mode=on,intremap=on"]);
        }
        command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        command.args(["-no-reboot", "-kernel"]).arg(self.kernel);
        command.arg("-initrd").arg(self.initramfs);
        command.args(["-append", self.append]);
        for (slot, socket) in (FIRST_SLOT..).zip(functions) {
            command.arg("-device").arg(format!(
                "pcie-root-port,id=port{slot},bus=pcie.0,addr={slot:#x},chassis={slot},hotplug=off"
            ));
            command.arg("-device").arg(format!(
                r#"{{"driver":"vfio-user-pci","bus":"port{slot}","socket":{{"type":"unix","path":"{}"}},"x-msg-timeout":{PATIENCE_MS}}}"#,
                socket.as_ref().display()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_without_its_own_virtualisation_is_no_reason_to_try_kvm() {
        assert!(virtualises("processor: 0\nflags\t\t: fpu vmx sse\n"));
        assert!(virtualises("flags : svm\n"));
        assert!(!virtualises("flags : fpu vmx_none sse\nbugs : vmx\n"));
        assert!(!virtualises(""));
    }

    #[test]
    fn functions_have_root_ports_of_their_own_one_behind_the_other() {
        let machine = Qemu {
            accelerator: Accelerator::Tcg,
            iommu: false,
            memory: "1G",
            kernel: Path::new("/k"),
            initramfs: Path::new("/i"),
            append: "quiet",
        };
        let mut command = Command::new("qemu");
        machine.add_to(&mut command, &["/a.sock", "/b.sock"]);
        let words: Vec<_> = command.get_args().filter_map(|it| it.to_str()).collect();
        for part in [
            "port3,bus=pcie.0,addr=0x3",
            "port4,bus=pcie.0,addr=0x4",
            r#""bus":"port4","socket":{"type":"unix","path":"/b.sock"}"#,
        ] {
            assert!(words.iter().any(|word| word.contains(part)), "{part}");
        }
        assert!(!words.iter().any(|word| word.contains("iommu")));
    }
}
