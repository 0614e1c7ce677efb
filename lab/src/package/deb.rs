//! A Debian package: a folder laid out as dpkg-deb(1) wants it, and what it makes of that.
//!
//! What policy asks of every package is done here, once: its copyright file, change logs and checksums, modes and
//! owners that do not depend on who builds, times that are the commit's. What a package is for says
//! [`contents`](super::contents).

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// What all packages of one build have in common.
pub struct Build {
    /// Of the crates, and of the packaging: `0.1.0-1`.
    pub version: String,
    /// As dpkg calls the machine: `amd64`.
    pub architecture: String,
    /// Where its libraries are: `x86_64-linux-gnu`.
    pub triplet: String,
    /// Seconds since 1970 of the commit: the time of every file.
    pub time: String,
    /// `debian/copyright` of every package.
    pub copyright: String,
    /// Who answers for the packages: `Name <address>`.
    pub maintainer: String,
    /// Packages and what they are made of go here.
    pub folder: PathBuf,
}

/// One package under construction.
pub struct Deb<'a> {
    build: &'a Build,
    name: &'static str,
    root: PathBuf,
    fields: Vec<(&'static str, String)>,
}

/// What is said of a package, beside what is in it.
pub struct About {
    pub name: &'static str,
    pub section: &'static str,
    /// Whether nothing in it depends on the processor.
    pub is_data: bool,
    /// One line, then lines of a longer text.
    pub description: &'static str,
    /// The package whose documents serve this one, too, which then has no file but those that it is for.
    pub documents_of: Option<&'static str>,
}

impl<'a> Deb<'a> {
    /// A package with nothing in it but its documents.
    ///
    /// # Errors
    /// A file.
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

    /// A line of the control file.
    pub fn field(&mut self, name: &'static str, value: &str) {
        self.fields.push((name, value.to_owned()));
    }

    /// What the programs and libraries in it need, as dpkg-shlibdeps(1) finds out, and `more`.
    ///
    /// # Errors
    /// dpkg-dev is not installed, or has no answer.
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

    /// A file with these bytes.
    ///
    /// # Errors
    /// A file.
    pub fn write(&self, path: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
        let to = self.place(path)?;
        fs::write(&to, bytes).with_context(|| to.display().to_string())
    }

    /// A copy of a file; one that may be executed can be executed.
    ///
    /// # Errors
    /// A file.
    pub fn copy(&self, path: &str, from: &Path) -> Result<()> {
        let to = self.place(path)?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        Ok(())
    }

    /// A program or an archive without what only a debugger reads; `how` says which symbols stay.
    ///
    /// # Errors
    /// `strip` is not there, or refuses the file.
    pub fn strip(&self, path: &str, from: &Path, how: &str) -> Result<()> {
        let to = self.place(path)?;
        let mut strip = shell::command("strip", &[how, "-o"]);
        strip.arg(&to).arg(from);
        shell::capture(strip)?;
        Ok(())
    }

    /// A text, compressed as manual pages and change logs are: without name and time in it.
    ///
    /// # Errors
    /// gzip(1), or a file.
    pub fn compressed(&self, path: &str, text: impl AsRef<[u8]>) -> Result<()> {
        self.write(path, text)?;
        let mut gzip = shell::command("gzip", &["-9", "--no-name", "--force"]);
        gzip.arg(self.root.join(path));
        shell::capture(gzip)?;
        Ok(())
    }

    /// A name for another file.
    ///
    /// # Errors
    /// A file.
    pub fn link(&self, path: &str, to: &str) -> Result<()> {
        Ok(symlink(to, self.place(path)?)?)
    }

    /// A folder, empty so far.
    ///
    /// # Errors
    /// A file.
    pub fn folder(&self, path: &str) -> Result<()> {
        Ok(fs::create_dir_all(self.root.join(path))?)
    }

    /// A script that dpkg runs, or another file of its own.
    ///
    /// # Errors
    /// A file.
    pub fn control(&self, name: &str, text: &str) -> Result<()> {
        let path = self.root.join("DEBIAN").join(name);
        fs::write(&path, text)?;
        let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
        Ok(fs::set_permissions(path, PermissionsExt::from_mode(mode))?)
    }

    /// Packs it; the file.
    ///
    /// # Errors
    /// dpkg-deb(1), or a file.
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

    /// Where a file goes; its folder is made.
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
        // The project makes its packages itself, so there is no request for packaging in Debian's list of bugs.
        self.write(
            &format!("usr/share/lintian/overrides/{}", self.name),
            format!(
                "# Packages of the project's own: nobody has asked Debian for them.\n{}: initial-upload-closes-no-bugs\n",
                self.name
            ),
        )
    }
}

/// All files below a folder but dpkg's own, by their paths in it. Folders get the mode that Debian's have.
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
