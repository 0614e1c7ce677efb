//! The lines about the machine as a whole.

use std::io;

use driver::RingProbe;
use driver::pci::{Iommu, Machine, Remapping};

use super::Line;
use super::fix::Fix;

/// Memory in MiB that a function's firmware and our queues take, besides the memory that a program registers.
const OVERHEAD_MIB: u64 = 64;
/// Size of a huge page, in MiB.
const HUGE_PAGE_MIB: u64 = 2;

pub(super) fn lines(machine: &Machine, memory_mib: u64) -> [Line; 7] {
    [
        iommu(&machine.iommu(), &Loader::of(machine)),
        interrupt_remapping(machine.interrupt_remapping()),
        modules(&machine.missing_modules()),
        io_uring(machine.io_uring_disabled(), RingProbe::new()),
        memlock(machine.lockable_bytes(), memory_mib + OVERHEAD_MIB),
        limits(machine.dma_mappings(), machine.open_files()),
        huge_pages(machine, memory_mib),
    ]
}

/// Commands that add a parameter to the kernel's command line, and that remove one.
struct Loader {
    add: &'static str,
    take: &'static str,
}

impl Loader {
    /// Returns the commands for this system. Red Hat's systems keep the command line with each kernel, and have a
    /// program that edits it.
    fn of(machine: &Machine) -> Self {
        if machine.path("/usr/sbin/grubby").exists() {
            return Self {
                add: "grubby --update-kernel=ALL --args=intel_iommu=on && reboot",
                take: "grubby --update-kernel=ALL --remove-args=PARAMETER (that one), then: reboot",
            };
        }
        Self {
            add: "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&intel_iommu=on /' /etc/default/grub && update-grub && reboot",
            take: "take that parameter out of GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot",
        }
    }
}

fn iommu(iommu: &Iommu, loader: &Loader) -> Line {
    const CHECK: &str = "iommu";
    if iommu.groups > 0 {
        let units = match &iommu.units[..] {
            [] => "on".to_owned(),
            units => units.join(", "),
        };
        return Line::ok(CHECK, format!("{units}; {} groups", iommu.groups));
    }
    let parameters = match &iommu.parameters[..] {
        [] => "nothing about it on the kernel's command line".to_owned(),
        parameters => format!("{} on the kernel's command line", parameters.join(" ")),
    };
    let is_off = iommu
        .parameters
        .iter()
        .any(|parameter| parameter.ends_with("=off"));
    let asked = iommu.parameters.iter().any(|it| it == "intel_iommu=on");
    let mend = if !iommu.described {
        "switch it on in the firmware's setup (Intel: VT-d; AMD: IOMMU or AMD-Vi; Arm: SMMU) and boot again"
    } else if is_off {
        loader.take
    } else if iommu.intel && !asked {
        loader.add
    } else {
        "dmesg | grep -i -e dmar -e amd-vi -e smmu says why the kernel does not use what the firmware describes"
    };
    let described = if iommu.described {
        "the firmware describes one"
    } else {
        "the firmware describes none"
    };
    Line::not_ok(CHECK, format!("no groups; {described}, {parameters}"), mend)
}

fn interrupt_remapping(remapping: Remapping) -> Line {
    const CHECK: &str = "interrupt remapping";
    match remapping {
        Remapping::On => Line::ok(CHECK, "interrupts pass the IOMMU"),
        Remapping::Allowed => Line::ok(
            CHECK,
            "off, and allow_unsafe_interrupts says not to mind: a device can raise any interrupt",
        ),
        Remapping::Off => Line::not_ok(
            CHECK,
            "off: VFIO gives no function away (VFIO_SET_IOMMU answers EPERM)",
            "switch it on in the firmware (x2APIC, interrupt remapping) and take intremap=off from the command line; or, trusting the device: modprobe -r vfio_iommu_type1; modprobe vfio_iommu_type1 allow_unsafe_interrupts=1",
        ),
    }
}

fn modules(missing: &[&str]) -> Line {
    const CHECK: &str = "modules";
    if missing.is_empty() {
        return Line::ok(CHECK, "vfio-pci, vfio_iommu_type1, /dev/vfio/vfio");
    }
    Line::not_ok(
        CHECK,
        format!("not there: {}", missing.join(", ")),
        "modprobe -a vfio-pci vfio_iommu_type1; at every boot: printf 'vfio-pci\\nvfio_iommu_type1\\n' > /etc/modules-load.d/vfio.conf",
    )
    .fixed_by(Fix::Modprobe(&["vfio-pci", "vfio_iommu_type1"]))
}

/// Reports the kernel's switch `io_uring_disabled`, and whether a ring can be created.
fn io_uring(disabled: u32, tried: io::Result<RingProbe>) -> Line {
    /// Remedy for the switch. `--fix` does not apply it: the switch concerns all processes, and was set on purpose.
    const MEND: &str = "sysctl -w kernel.io_uring_disabled=0";
    const CHECK: &str = "io_uring";
    /// Error numbers of the system.
    const EPERM: i32 = nix::errno::Errno::EPERM as i32;
    const ENOMEM: i32 = nix::errno::Errno::ENOMEM as i32;
    const ENOSYS: i32 = nix::errno::Errno::ENOSYS as i32;
    const EACCES: i32 = nix::errno::Errno::EACCES as i32;
    /// Behaviour of `driver::Reactor` without a ring.
    const WITHOUT: &str = "waiting goes by ppoll(2), and disks are refused";
    let switch = match disabled {
        0 => String::new(),
        1 => "; kernel.io_uring_disabled is 1: others than CAP_SYS_ADMIN and the group io_uring_group may not".to_owned(),
        other => {
            let found = format!("kernel.io_uring_disabled is {other}: {WITHOUT}");
            return Line::not_ok(CHECK, found, MEND).optional();
        }
    };
    match tried {
        Err(error) => {
            let why = match error.raw_os_error() {
                Some(EPERM) if disabled == 0 => {
                    "a filter of system calls, such as a container's, forbids it: let io_uring_setup, io_uring_enter and io_uring_register pass"
                }
                Some(EPERM) => MEND,
                Some(ENOSYS) => "a kernel with CONFIG_IO_URING, 5.11 or newer (RHEL 9.3 or newer)",
                Some(EACCES) => {
                    "SELinux forbids it: allow the domain io_uring, see ausearch -m avc"
                }
                Some(ENOMEM) => "the limit of locked memory, see memlock",
                _ => "see io_uring_setup(2) for this error",
            };
            let refused = matches!(error.raw_os_error(), Some(EPERM | ENOSYS | EACCES | ENOMEM));
            let left = if refused {
                format!("; {WITHOUT}")
            } else {
                String::new()
            };
            let line = Line::not_ok(
                CHECK,
                format!("no ring can be made: {error}{switch}{left}"),
                why,
            );
            // For these errors the reactor falls back to ppoll(2).
            if refused { line.optional() } else { line }
        }
        Ok(RingProbe { missing, .. }) if !missing.is_empty() => Line::not_ok(
            CHECK,
            format!("this kernel does not know {}", missing.join(", ")),
            "a newer kernel; 5.11 knows all",
        ),
        Ok(RingProbe { deferred: true, .. }) => Line::ok(CHECK, format!("a ring was made{switch}")),
        Ok(_) => Line::ok(
            CHECK,
            format!(
                "a ring was made; waiting is quicker from Linux 6.1 on (DEFER_TASKRUN){switch}"
            ),
        ),
    }
}

fn memlock(lockable: Option<u64>, needed_mib: u64) -> Line {
    const CHECK: &str = "memlock";
    let needed_kib = needed_mib * 1024;
    match lockable {
        None => Line::ok(CHECK, "no limit"),
        Some(bytes) if bytes / 1024 >= needed_kib => Line::ok(
            CHECK,
            format!("{} MiB, {needed_mib} are needed", bytes >> 20),
        ),
        Some(bytes) => Line::not_ok(
            CHECK,
            format!(
                "{} KiB may be locked, {needed_kib} are needed: VFIO_IOMMU_MAP_DMA will answer ENOMEM",
                bytes / 1024
            ),
            format!(
                "ulimit -l {needed_kib}; for a service LimitMEMLOCK={needed_mib}M; for logins: echo '* - memlock {needed_kib}' > /etc/security/limits.d/90-dat.conf"
            ),
        ),
    }
}

fn limits(mappings: Option<u64>, files: Option<u64>) -> Line {
    /// Number of DMA mappings that a program needs. The arena takes few. Each piece of lent memory takes one, unless it
    /// lies in memory that is lent already.
    const MAPPINGS: u64 = 1024;
    /// Number of open files that a program needs: an eventfd for each interrupt vector, of which a function has up to a
    /// few hundred, and the program's own files.
    const FILES: u64 = 1024;
    const CHECK: &str = "limits";
    let few_mappings = mappings.filter(|&count| count < MAPPINGS);
    let few_files = files.filter(|&count| count < FILES);
    let count =
        |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |it| it.to_string());
    let found = format!(
        "{} DMA mappings, {} open files",
        count(mappings),
        count(files)
    );
    let mut mend = Vec::new();
    if few_mappings.is_some() {
        mend.push(
            "echo 65535 > /sys/module/vfio_iommu_type1/parameters/dma_entry_limit".to_owned(),
        );
    }
    if few_files.is_some() {
        mend.push(format!(
            "ulimit -n {FILES}; for a service LimitNOFILE={FILES}"
        ));
    }
    if mend.is_empty() {
        return Line::ok(CHECK, found);
    }
    let line = Line::not_ok(CHECK, found, mend.join("; "));
    if few_mappings.is_none() {
        return line;
    }
    line.fixed_by(Fix::Write {
        path: "/sys/module/vfio_iommu_type1/parameters/dma_entry_limit".to_owned(),
        text: "65535".to_owned(),
    })
}

fn huge_pages(machine: &Machine, memory_mib: u64) -> Line {
    const CHECK: &str = "huge pages";
    let pool = machine.huge_pages();
    let needed = memory_mib.div_ceil(HUGE_PAGE_MIB);
    let found = format!("{} of 2 MiB are free, {needed} are wanted", pool.free);
    if pool.free >= needed {
        return Line::ok(CHECK, found);
    }
    let missing = needed - pool.free;
    let total = pool.total + missing;
    let line = Line::not_ok(
        CHECK,
        found,
        format!("echo {total} > {POOL}; at every boot: echo vm.nr_hugepages={total} > /etc/sysctl.d/90-dat.conf"),
    )
    .optional();
    // Memory in the pool is not available to other uses, so the pool may take half of the available memory at most.
    let affordable = machine.available_mib() / 2 >= missing * HUGE_PAGE_MIB;
    if !affordable {
        return line;
    }
    line.fixed_by(Fix::Write {
        path: POOL.to_owned(),
        text: total.to_string(),
    })
}

/// File with the number of huge pages of 2 MiB that the kernel keeps.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(number: i32) -> io::Result<RingProbe> {
        Err(io::Error::from_raw_os_error(number))
    }

    fn made(missing: &[&'static str], deferred: bool) -> io::Result<RingProbe> {
        Ok(RingProbe {
            missing: missing.to_vec(),
            deferred,
        })
    }

    #[test]
    fn io_uring_is_what_a_ring_says_and_not_what_a_switch_says() {
        for (disabled, tried, ok, found, mend) in [
            (0, made(&[], true), true, "a ring was made", ""),
            (0, made(&[], false), true, "Linux 6.1", ""),
            (1, made(&[], true), true, "others than CAP_SYS_ADMIN", ""),
            (0, refused(1), false, "os error 1", "filter of system calls"),
            (1, refused(1), false, "io_uring_disabled is 1", "sysctl -w"),
            (0, refused(13), false, "disks are refused", "SELinux"),
            (0, refused(38), false, "os error 38", "CONFIG_IO_URING"),
            (0, refused(12), false, "os error 12", "memlock"),
            (2, made(&[], true), false, "disks are refused", "sysctl -w"),
            (
                0,
                made(&["IORING_OP_READ"], true),
                false,
                "IORING_OP_READ",
                "newer kernel",
            ),
        ] {
            let line = io_uring(disabled, tried);
            assert_eq!(line.ok, Some(ok), "{}", line.found);
            let is_waited = line.found.contains("waiting goes by ppoll(2)");
            assert_eq!(line.required, !is_waited, "{}", line.found);
            assert!(line.found.contains(found), "{}", line.found);
            let said = line.mend.unwrap_or_default();
            assert!(said.contains(mend) && said.is_empty() == ok, "{said}");
            assert!(line.fix.is_none(), "the switch is somebody's decision");
        }
    }
}
