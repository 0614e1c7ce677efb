//! Builds a Debian package from a folder laid out as dpkg-deb(1) requires.
//!
//! This module implements the parts of Debian policy that every package shares: the copyright file, change logs and
//! checksums, modes and owners that do not depend on the builder, and the commit's time as the time of every file.
//! The purpose of each package is in [`contents`](super::contents).

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Properties common to all packages of one build.
pub struct Build {
    /// Version of the crates and of the packaging: `0.1.0-1`.
    pub version: String,
    /// Debian's name of the architecture: `amd64`.
    pub architecture: String,
    /// Name of the folder of its libraries: `x86_64-linux-gnu`.
    pub triplet: String,
    /// Time of the commit in seconds since 1970: the time of every file.
    pub time: String,
    /// `debian/copyright` of every package.
    pub copyright: String,
    /// Maintainer of the packages: `Name <address>`.
    pub maintainer: String,
    /// Folder of the packages and their intermediate files.
    pub folder: PathBuf,
}

/// One package under construction.
pub struct Deb<'a> {
    build: &'a Build,
    name: &'static str,
    root: PathBuf,
    fields: Vec<(&'static str, String)>,
}

/// Description of a package, apart from its files.
pub struct About {
    pub name: &'static str,
    pub section: &'static str,
    /// True if nothing in it depends on the processor.
    pub is_data: bool,
    /// A summary line, then lines of a longer text.
    pub description: &'static str,
    /// The package whose documents serve this one, too. This one then has no documents of its own.
    pub documents_of: Option<&'static str>,
}

impl<'a> Deb<'a> {
    /// Starts a package that contains only its documents.
    ///
    /// # Errors
    /// A file could not be written.
    pub fn new(build: &'a Build, about: &About) -> Result<Self> {
        let root = build.folder.join(about.name);
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| root.display().to_string())?;
        }
        fs::create_dir_all(root.join("DEBIAN"))?;
        let architecture = match about.is_data {
            true => "all",
            false => &build.architecture,
        };
        let (short, long) = about.description.split_once('\n').unwrap_or_default();
        let long = long.trim_end().replace('\n', "\n ");
        let deb = Self {
            build,
            name: about.name,
            root,
            fields: vec![
                ("Package", about.name.to_owned()),
                ("Source", "udapl".to_owned()),
                ("Version", build.version.clone()),
                ("Architecture", architecture.to_owned()),
                ("Maintainer", build.maintainer.clone()),
                ("Section", about.section.to_owned()),
                ("Priority", "optional".to_owned()),
                ("Description", format!("{short}\n {long}")),
            ],
        };
        match about.documents_of {
            Some(other) => deb.link(&format!("usr/share/doc/{}", about.name), other)?,
            None => deb.documents()?,
        }
        Ok(deb)
    }

    /// Adds a line of the control file.
    pub fn field(&mut self, name: &'static str, value: &str) {
        self.fields.push((name, value.to_owned()));
    }

    /// Adds the dependencies of the programs and libraries in it, as dpkg-shlibdeps(1) finds them, and `more`.
    ///
    /// # Errors
    /// dpkg-dev is not installed, or finds no answer.
    pub fn depends(&mut self, more: &str, programs: &[&str]) -> Result<()> {
        let mut needs: Vec<String> = Vec::new();
        if !programs.is_empty() {
            ensure!(
                shell::exists("dpkg-shlibdeps"),
                "dpkg-shlibdeps is not installed: apt-get install dpkg-dev"
            );
            let source = self.build.folder.join("source");
            fs::create_dir_all(source.join("debian"))?;
            let control = format!(
                "Source: udapl\n\nPackage: {}\nArchitecture: any\n",
                self.name
            );
            fs::write(source.join("debian/control"), control)?;
            let mut command = shell::command("dpkg-shlibdeps", &["-O"]);
            command.args(programs.iter().map(|program| self.root.join(program)));
            let said = shell::capture({
                command.current_dir(&source);
                command
            })?;
            let found = said.trim().strip_prefix("shlibs:Depends=");
            needs.push(found.with_context(|| said.clone())?.to_owned());
        }
        if !more.is_empty() {
            needs.push(more.to_owned());
        }
        self.field("Depends", &needs.join(", "));
        Ok(())
    }

    /// Adds a file with these bytes.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn write(&self, path: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
        let to = self.place(path)?;
        fs::write(&to, bytes).with_context(|| to.display().to_string())
    }

    /// Adds a copy of a file, which is executable if the original is.
    ///
    /// # Errors
    /// A file could not be read or written.
    pub fn copy(&self, path: &str, from: &Path) -> Result<()> {
        let to = self.place(path)?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        Ok(())
    }

    /// Adds a program or an archive without its debug information; `how` says which symbols stay.
    ///
    /// # Errors
    /// `strip` is missing or refuses the file.
    pub fn strip(&self, path: &str, from: &Path, how: &str) -> Result<()> {
        let to = self.place(path)?;
        let mut strip = shell::command("strip", &[how, "-o"]);
        strip.arg(&to).arg(from);
        shell::capture(strip)?;
        Ok(())
    }

    /// Adds a compressed text, as policy asks for manual pages and change logs: without name and time in it.
    ///
    /// # Errors
    /// gzip(1) failed, or a file could not be written.
    pub fn compressed(&self, path: &str, text: impl AsRef<[u8]>) -> Result<()> {
        self.write(path, text)?;
        let mut gzip = shell::command("gzip", &["-9", "--no-name", "--force"]);
        gzip.arg(self.root.join(path));
        shell::capture(gzip)?;
        Ok(())
    }

    /// Adds a symbolic link to another file.
    ///
    /// # Errors
    /// The link could not be made.
    pub fn link(&self, path: &str, to: &str) -> Result<()> {
        Ok(symlink(to, self.place(path)?)?)
    }

    /// Adds an empty folder.
    ///
    /// # Errors
    /// The folder could not be made.
    pub fn folder(&self, path: &str) -> Result<()> {
        Ok(fs::create_dir_all(self.root.join(path))?)
    }

    /// Adds a script that dpkg runs, or another of its control files.
    ///
    /// # Errors
    /// The file could not be written.
    pub fn control(&self, name: &str, text: &str) -> Result<()> {
        let path = self.root.join("DEBIAN").join(name);
        fs::write(&path, text)?;
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        Ok(fs::set_permissions(path, PermissionsExt::from_mode(mode))?)
    }

    /// Builds the package and returns its file.
    ///
    /// # Errors
    /// dpkg-deb(1) failed, or a file could not be read or written.
    pub fn pack(mut self) -> Result<PathBuf> {
        let mut files = Vec::new();
        list(&self.root, &self.root, &mut files)?;
        files.sort();
        let (mut sums, mut bytes) = (String::new(), 0);
        for file in &files {
            let path = self.root.join(file);
            let data = path.symlink_metadata()?;
            bytes += data.len().next_multiple_of(1024);
            if data.is_symlink() {
                continue;
            }
            let executable = data.permissions().mode() & 0o100 != 0;
            let is_library = file.starts_with("usr/lib/") && file.contains(".so");
            let mode = if executable && !is_library {
                0o755
            } else {
                0o644
            };
            fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
            let mut sum = shell::command("md5sum", &[file]);
            sum.current_dir(&self.root);
            sums += &shell::capture(sum)?;
        }
        self.control("md5sums", &sums)?;
        let conffiles: String = files
            .iter()
            .filter(|file| file.starts_with("etc/"))
            .map(|file| format!("/{file}\n"))
            .collect();
        if !conffiles.is_empty() {
            self.control("conffiles", &conffiles)?;
        }
        self.field("Installed-Size", &(bytes / 1024).to_string());
        // The description comes last: it has lines of its own.
        self.fields.sort_by_key(|(name, _)| *name == "Description");
        let mut control = String::new();
        for (name, value) in &self.fields {
            writeln!(control, "{name}: {value}")?;
        }
        self.control("control", &control)?;
        let mut pack = shell::command("dpkg-deb", &["--root-owner-group", "-Zxz", "--build"]);
        pack.arg(&self.root).arg(&self.build.folder);
        pack.env("SOURCE_DATE_EPOCH", &self.build.time);
        shell::capture(pack)?;
        let architecture = &self.fields.iter().find(|(name, _)| *name == "Architecture");
        let architecture = architecture.map_or("all", |(_, value)| value.as_str());
        let file = format!("{}_{}_{architecture}.deb", self.name, self.build.version);
        fs::remove_dir_all(&self.root)?;
        Ok(self.build.folder.join(file))
    }

    /// Returns the place of a file, whose folder is made.
    fn place(&self, path: &str) -> Result<PathBuf> {
        let to = self.root.join(path);
        fs::create_dir_all(to.parent().context("a file in a folder")?)?;
        Ok(to)
    }

    fn documents(&self) -> Result<()> {
        let folder = format!("usr/share/doc/{}", self.name);
        self.write(&format!("{folder}/copyright"), &self.build.copyright)?;
        let changes = fs::read(shell::root().join("CHANGELOG.md"))?;
        self.compressed(&format!("{folder}/changelog"), changes)?;
        let mut date = shell::command("date", &["--utc", "--rfc-email"]);
        date.arg(format!("--date=@{}", self.build.time));
        let entry = format!(
            "udapl ({}) unstable; urgency=medium\n\n  * Packages of the project's own; what changed is in changelog.gz.\n\n -- {}  {}",
            self.build.version,
            self.build.maintainer,
            shell::capture(date)?
        );
        self.compressed(&format!("{folder}/changelog.Debian"), entry)?;
        // The project makes its packages itself, so Debian's bug tracker has no request for packaging.
        self.write(
            &format!("usr/share/lintian/overrides/{}", self.name),
            format!(
                "# Packages of the project's own: nobody has asked Debian for them.\n{}: initial-upload-closes-no-bugs\n",
                self.name
            ),
        )
    }
}

/// Lists all files below a folder except dpkg's own, by their paths in it. Folders get the mode of Debian's folders.
fn list(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    fs::set_permissions(folder, PermissionsExt::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path == root.join("DEBIAN") {
            continue;
        }
        match path.symlink_metadata()?.is_dir() {
            true => list(root, &path, files)?,
            false => files.push(path.strip_prefix(root)?.to_string_lossy().into_owned()),
        }
    }
    Ok(())
}
