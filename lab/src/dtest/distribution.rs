//! Debian's packages of DAT 2.0: the registry, the programs and the headers.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::{debian, shell};

/// Packages to unpack: programs, registry, headers.
const PACKAGES: [&str; 3] = ["dapl2-utils", "libdapl2", "libdapl-dev"];
/// File that exists once the folder is completely unpacked.
const STAMP: &str = "unpacked";

/// The unpacked packages.
pub struct Distribution {
    root: PathBuf,
}

impl Distribution {
    /// Downloads the packages and unpacks them, unless they are unpacked already.
    ///
    /// # Errors
    /// The required programs or the packages are not available.
    pub fn prepare() -> Result<Self> {
        let folder = shell::target_directory()?.join("dapl2");
        let root = folder.join("root");
        if !root.join(STAMP).exists() {
            debian::unpack(&folder, &root, &PACKAGES)?;
            ensure!(
                root.join("usr/bin/dtest").exists(),
                "the packages have no dtest"
            );
            std::fs::write(root.join(STAMP), "")?;
        }
        Ok(Self { root })
    }

    /// Returns the path of a program of the packages.
    pub fn program(&self, name: &str) -> PathBuf {
        self.root.join("usr/bin").join(name)
    }

    /// Returns the folder of `libdat2.so.2`.
    ///
    /// # Errors
    /// The library is not in the folder in which Debian's packages have libraries.
    pub fn libraries(&self) -> Result<PathBuf> {
        let all = self.root.join("usr/lib");
        let mut folders = std::fs::read_dir(&all)?.filter_map(|entry| Some(entry.ok()?.path()));
        let found = folders.find(|folder| folder.join("libdat2.so.2").exists());
        found.with_context(|| format!("no libdat2.so.2 below {}", all.display()))
    }

    /// Compiles assertions that compare our structures with the packages' headers.
    ///
    /// # Errors
    /// An assertion does not hold, or there is no compiler.
    pub fn hold_layouts(&self) -> Result<()> {
        let example = ["run", shell::TESTED, "--quiet", "--example", "dat2_layouts"];
        let text = shell::capture(shell::cargo(&example))?;
        let source = self.root.join("layouts.c");
        std::fs::write(&source, &text)?;
        let mut cc = shell::command("cc", &["-std=gnu11", "-fsyntax-only", "-I"]);
        cc.arg(self.root.join("usr/include")).arg(&source);
        shell::run(cc)?;
        let count = text.matches("_Static_assert").count();
        println!("dtest: {count} sizes and offsets are those of the package's headers");
        Ok(())
    }
}
