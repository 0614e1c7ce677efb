//! Builds a Debian package from a folder laid out as dpkg-deb(1) requires.
//!
//! This module implements the parts of Debian policy that every package shares: copyright file, change log and
//! checksums, and modes and owners that do not depend on the builder. Every file gets the commit's time. The files of
//! each package are in [`contents`](super::contents).

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Properties common to all packages of one build.
pub struct Build {
    /// Version of the packages, such as `0.1.0-1`: version of the crates, and revision of the packaging.
    pub version: String,
    /// Debian's name of the architecture, such as `amd64`.
    pub architecture: String,
    /// Name of the architecture's folder of libraries, such as `x86_64-linux-gnu`.
    pub triplet: String,
    /// Time of the commit in seconds since 1970, which every file gets.
    pub time: String,
    /// Text of `debian/copyright` in every package.
    pub copyright: String,
    /// Maintainer of the packages, as `Name <address>`.
    pub maintainer: String,
    /// Folder in which the packages and their intermediate files are made.
    pub folder: PathBuf,
}

/// One package under construction.
pub struct Deb<'a> {
    build: &'a Build,
    name: &'static str,
    root: PathBuf,
    fields: Vec<(&'static str, String)>,
}

/// Name and description of a package.
pub struct About {
    pub name: &'static str,
    pub section: &'static str,
    /// True if no file of the package depends on the processor architecture.
    pub is_data: bool,
    /// A summary line, followed by the lines of the long description.
    pub description: &'static str,
    /// Another package whose documents also serve this package, which then has no documents of its own.
    pub documents_of: Option<&'static str>,
}

impl<'a> Deb<'a> {
    /// Starts a package that contains only its documents, or a link to those of another package.
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

    /// Adds a field to the control file.
    pub fn field(&mut self, name: &'static str, value: &str) {
        self.fields.push((name, value.to_owned()));
    }

    /// Adds a `Depends` field: the dependencies of the given programs and libraries, as dpkg-shlibdeps(1) finds them,
    /// and `more`.
    ///
    /// # Errors
    /// dpkg-dev is not installed, or dpkg-shlibdeps(1) fails.
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

    /// Adds a file with this content.
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

    /// Adds a program or an archive without its debug information. `how` is the option of strip(1) that selects the
    /// symbols to remove.
    ///
    /// # Errors
    /// strip(1) is not installed, or refuses the file.
    pub fn strip(&self, path: &str, from: &Path, how: &str) -> Result<()> {
        let to = self.place(path)?;
        let mut strip = shell::command("strip", &[how, "-o"]);
        strip.arg(&to).arg(from);
        shell::capture(strip)?;
        Ok(())
    }

    /// Adds a compressed text, as policy requires for manual pages and change logs. The gzip header has no name and no
    /// time.
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

    /// Adds a maintainer script or another control file.
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
        // The description must be the last field, because it has further lines.
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

    /// Returns the full path for a file of the package. Creates its folder.
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
        // The override has this reason: the packages are not in Debian, so its bug tracker has no request for packaging
        // to close.
        self.write(
            &format!("usr/share/lintian/overrides/{}", self.name),
            format!(
                "# Packages of the project's own: nobody has asked Debian for them.\n{}: initial-upload-closes-no-bugs\n",
                self.name
            ),
        )
    }
}

/// Lists all files below a folder by their paths relative to `root`, except dpkg's own files. Sets the mode of the
/// folders to 0755.
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
