//! Kernel modules: their dependencies, and the order in which they are loaded.
//!
//! depmod writes `modules.dep` with one line per module: the module's file, a colon, and all its direct and indirect
//! dependencies, the most basic one last (modules.dep(5)).
//!
//! A facility may be a module in one kernel and built into another. The name of such a module is given with a question
//! mark at its end: if the kernel has no such module, the facility is assumed to be built in.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// Returns the files of `wanted` modules and of all their dependencies, in an order in which they can be loaded.
pub fn load_order(dep: &str, wanted: &[&str]) -> Result<Vec<String>> {
    let lines: BTreeMap<String, (&str, Vec<&str>)> = dep
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(file, needs)| (name(file), (file, needs.split_whitespace().collect())))
        .collect();
    let mut order: Vec<String> = Vec::new();
    for module in wanted {
        let found = lines.get(&name(module.trim_end_matches('?')));
        if found.is_none() && module.ends_with('?') {
            continue;
        }
        let (file, needs) =
            found.with_context(|| format!("the kernel package has no module {module}"))?;
        for file in needs.iter().rev().chain([file]) {
            if !order.iter().any(|known| known == file) {
                order.push((*file).to_owned());
            }
        }
    }
    Ok(order)
}

/// Returns the kernel's name of a module file: without folder and suffix, and with underscores instead of hyphens.
pub fn name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split('.').next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/drivers/vfio/vfio.ko.xz:\n\
        kernel/drivers/vfio/pci/vfio-pci-core.ko.xz: kernel/drivers/vfio/vfio.ko.xz kernel/virt/lib/irqbypass.ko.xz\n\
        kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/pci/vfio-pci-core.ko.xz \
        kernel/drivers/vfio/vfio.ko.xz kernel/virt/lib/irqbypass.ko.xz\n\
        kernel/virt/lib/irqbypass.ko.xz:\n";

    #[test]
    fn a_module_comes_after_everything_it_needs_and_only_once() {
        let order = load_order(DEP, &["vfio", "vfio_pci"]).unwrap();
        let names: Vec<String> = order.iter().map(|file| name(file)).collect();
        assert_eq!(names, ["vfio", "irqbypass", "vfio_pci_core", "vfio_pci"]);
    }

    /// A module with a question mark is loaded if the kernel has it, and otherwise skipped. For example, the CRCs of
    /// Linux 6.12 are modules; in 7.3 they are neither modules nor listed as built in.
    #[test]
    fn a_module_that_only_some_kernels_have_is_loaded_where_it_is() {
        assert!(load_order(DEP, &["crc32_generic?"]).unwrap().is_empty());
        let order = load_order(DEP, &["irqbypass?"]).unwrap();
        assert_eq!(order, ["kernel/virt/lib/irqbypass.ko.xz"]);
    }

    #[test]
    fn a_module_the_kernel_does_not_have_is_named() {
        let error = load_order(DEP, &["mlx5_core"]).unwrap_err().to_string();
        assert!(error.contains("mlx5_core"), "{error}");
    }
}
