//! QEMU's command line: a machine whose PCI slots have functions that other processes serve.
//!
//! ```text
//!   bus 0 (pcie.0) --- root port 3 --- bus 1 --- function 0
//!                  \-- root port 4 --- bus 2 --- function 1     ...
//! ```
//!
//! Each function is behind a root port of its own: on the root bus QEMU would show it as an integrated endpoint, which
//! has no link. All memory is one memfd, which functions map to reach it by DMA.

use std::path::Path;
use std::process::Command;

/// Where the first function's root port is in the guest: bus 0, this device; the others' follow. The functions
/// themselves are device 0 of the buses behind, 1 and on.
const FIRST_SLOT: u8 = 3;
/// How long QEMU waits for an answer of a function's server until it takes the function for gone: on a machine with
/// much else to do, five seconds (QEMU's own choice) may pass.
const PATIENCE_MS: u32 = 120_000;

/// How the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// One by one, in software.
    Tcg,
}

impl Accelerator {
    /// What this machine can do. A machine without the processor's own virtualisation may have a `/dev/kvm` that does
    /// not run a stock kernel.
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

/// Whether /proc/cpuinfo says that the processor has VMX or SVM.
fn virtualises(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| {
        line.split_whitespace()
            .any(|flag| matches!(flag, "vmx" | "svm"))
    })
}

/// A machine.
#[derive(Clone, Copy, Debug)]
pub struct Qemu<'a> {
    /// How its instructions are executed.
    pub accelerator: Accelerator,
    /// An emulated Intel IOMMU between the functions and its memory.
    pub iommu: bool,
    /// As QEMU has it, 2G.
    pub memory: &'a str,
    /// Kernel image.
    pub kernel: &'a Path,
    /// The first file system.
    pub initramfs: &'a Path,
    /// Kernel parameters.
    pub append: &'a str,
}

impl Qemu<'_> {
    /// Adds the machine to a command of QEMU, and the functions at these sockets. Serial ports and other devices are
    /// still to be said, behind it.
    pub fn tell(&self, command: &mut Command, functions: &[impl AsRef<Path>]) {
        let (accelerator, processor) = match self.accelerator {
            Accelerator::Kvm => ("kvm", "host"),
            Accelerator::Tcg => ("tcg,thread=multi", "max"),
        };
        command.args(["-accel", accelerator, "-cpu", processor, "-smp", "2"]);
        // Interrupts are remapped by the IOMMU, which is QEMU's.
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
        machine.tell(&mut command, &["/a.sock", "/b.sock"]);
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
