//! The folder for dumps that are written automatically.
//!
//! An attacker who can write to the folder could redirect our writes by a symbolic link. So the folder must not be a
//! link, and must belong to the user of the process or to root. Others may write to it only if it is sticky, as /tmp
//! is. A file is created exclusively, with access for its owner alone, and is opened relative to the descriptor of
//! the checked folder, never by its path again. If the folder has been removed or replaced, the next dump opens and
//! checks the folder that is at its path then, or creates one.
//!
//! A dump is two files, `ADAPTER-PROCESS-INSTANCE-SECONDS-NUMBER.txt` and `.pcapng`. After [`DUMPS`] dumps a process
//! removes its oldest. Files of other processes are never removed. Nothing is written to a folder with [`FILES`]
//! files.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use dat_core::recorder::{Keeper, Occasion};
use hw_mlx::recorder::Recorder;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat, lstat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use super::Dump;
use crate::Ia;

/// Number of dumps kept for each process.
pub(crate) const DUMPS: usize = 16;
/// Number of files at which a folder is full.
const FILES: usize = 512;
/// Number of names tried for a new file.
const TRIES: u32 = 64;

/// A folder for dumps.
pub(crate) struct Folder {
    /// Absolute path of the folder.
    path: PathBuf,
    folder: OwnedFd,
    /// Names of the dumps, without extension, oldest first.
    written: VecDeque<String>,
    next: u32,
}

/// A folder shared by all its writers.
pub(crate) type Shared = Arc<Mutex<Folder>>;

/// Folders of this process by path, and the folders of open functions.
struct Folders {
    by_path: BTreeMap<PathBuf, Shared>,
    of_functions: Vec<(Weak<Recorder>, Shared)>,
}

static FOLDERS: Mutex<Folders> = Mutex::new(Folders {
    by_path: BTreeMap::new(),
    of_functions: Vec::new(),
});

impl Folder {
    /// Opens a folder, and creates it if it does not exist.
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match nix::unistd::mkdir(path, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let folder = open(path, flags, Mode::empty())?;
        let stat = fstat(&folder)?;
        let others =
            Mode::from_bits_truncate(stat.st_mode).intersects(Mode::S_IWGRP | Mode::S_IWOTH);
        let sticky = stat.st_mode & Mode::S_ISVTX.bits() != 0;
        let is_folder = SFlag::from_bits_truncate(stat.st_mode).contains(SFlag::S_IFDIR);
        let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        if !is_folder {
            return refuse("it is no folder");
        }
        if stat.st_uid != geteuid().as_raw() && stat.st_uid != 0 {
            return refuse("it belongs to another user");
        }
        if others && !sticky {
            return refuse("others may replace what is in it (chmod go-w)");
        }
        Ok(Self {
            path: path.to_owned(),
            folder,
            written: VecDeque::new(),
            next: 0,
        })
    }

    /// Opens the folder again if it is no longer at its path. Dumps in the previous folder stay there.
    fn follow(&mut self) -> io::Result<()> {
        let opened = fstat(&self.folder)?;
        let is_there = match lstat(&self.path) {
            Ok(found) => (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino),
            Err(Errno::ENOENT) => false,
            // Other errors, for example a path that the process may no longer search, do not show that it is gone.
            Err(_) => true,
        };
        if !is_there {
            let next = self.next;
            *self = Self {
                next,
                ..Self::open(&self.path)?
            };
        }
        Ok(())
    }

    /// Writes a dump and returns its path.
    fn write(&mut self, dump: &Dump) -> io::Result<PathBuf> {
        self.follow()?;
        while self.written.len() >= DUMPS
            && let Some(oldest) = self.written.pop_front()
        {
            for end in ["txt", "pcapng"] {
                let name = format!("{oldest}.{end}");
                // The file may have been removed already.
                let _ = unlinkat(&self.folder, name.as_str(), UnlinkatFlags::NoRemoveDir);
            }
        }
        let mut files = 0;
        for file in std::fs::read_dir(&self.path)?.take(FILES) {
            file?;
            files += 1;
        }
        if files == FILES {
            let full = format!("there are {FILES} files in it");
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        }
        let (name, text) = self.begin(dump)?;
        self.written.push_back(name.clone());
        let mut text = BufWriter::new(text);
        write!(text, "{dump}")?;
        text.flush()?;
        let capture = self.create(&format!("{name}.pcapng"))?;
        dump.write_pcapng(BufWriter::new(capture))
            .map_err(io::Error::other)?;
        Ok(self.path.join(format!("{name}.pcapng")))
    }

    /// Creates the text file under a free name.
    fn begin(&mut self, dump: &Dump) -> io::Result<(String, File)> {
        let letter = |letter: char| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '_'
            }
        };
        let adapter: String = dump.adapter.chars().take(64).map(letter).collect();
        let instance = dump.instances.first().map_or(0, |dump| dump.instance);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = now.map_or(0, |now| now.as_secs());
        for _ in 0..TRIES {
            let name = format!(
                "{adapter}-{}-{instance}-{seconds}-{}",
                dump.process, self.next
            );
            self.next = self.next.wrapping_add(1);
            match self.create(&format!("{name}.txt")) {
                Ok(file) => return Ok((name, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{TRIES} names for a file are taken"),
        ))
    }

    fn create(&self, name: &str) -> io::Result<File> {
        // O_EXCL refuses existing files and links.
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = openat(&self.folder, name, flags | OFlag::O_NOFOLLOW, mode)?;
        Ok(file.into())
    }
}

/// Returns the folder of that path. Opens the folder if this process has not opened it yet.
///
/// # Errors
/// The folder cannot be created or opened, or is not safe.
pub(crate) fn shared(path: &Path) -> io::Result<Shared> {
    // A relative path may name another folder when the next dump is written. With a slash at its end, a path
    // follows a link (path_resolution(7)). `components` removes the slash.
    let path: PathBuf = std::path::absolute(path)?.components().collect();
    let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = folders.by_path.get(&path) {
        return Ok(Arc::clone(known));
    }
    let folder = Arc::new(Mutex::new(Folder::open(&path)?));
    let known = Arc::clone(&folder);
    folders.by_path.insert(path, known);
    Ok(folder)
}

/// Makes the instances of a newly opened function write their dumps to a folder.
pub(crate) fn keep(function: &Arc<Recorder>, folder: Shared) {
    let mut folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    folders
        .of_functions
        .retain(|(function, _)| function.strong_count() > 0);
    let function = Arc::downgrade(function);
    folders.of_functions.push((function, folder));
}

/// Makes an instance write its dumps to the folder of its function, if there is one.
pub(crate) fn with_folder(mut ia: Ia) -> Ia {
    let hca = ia.provider().hca();
    let (adapter, function) = (hca.name().to_owned(), Arc::clone(hca.recorder()));
    let folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut of_functions = folders.of_functions.iter();
    let own = of_functions.find(|(other, _)| other.as_ptr() == Arc::as_ptr(&function));
    let Some(folder) = own.map(|(_, folder)| Arc::clone(folder)) else {
        return ia;
    };
    drop(folders);
    let keeper: Keeper = Box::new(move |occasion, held| {
        let reason = match occasion {
            Occasion::Broken { ep, cause } => match cause {
                Some(cause) => format!("the connection of EP {ep} broke: {cause}"),
                None => format!("the connection of EP {ep} broke"),
            },
            Occasion::Panic => "the thread of the instance panicked".to_owned(),
            _ => "something broke".to_owned(),
        };
        let dump = Dump::broken(&adapter, reason, held, &function);
        let mut folder = folder.lock().unwrap_or_else(PoisonError::into_inner);
        match folder.write(&dump) {
            Ok(path) => {
                tracing::warn!(adapter, reason = dump.reason, path = %path.display(), "wrote a dump of the flight recorder");
            }
            Err(error) => {
                tracing::error!(adapter, reason = dump.reason, folder = %folder.path.display(), %error, "cannot write a dump of the flight recorder");
            }
        }
    });
    ia.recorder_start();
    ia.recorder_keep(keeper);
    ia
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump() -> Dump {
        Dump::new("sim:nothing", "a test", Vec::new(), None)
    }

    #[test]
    fn a_folder_that_was_removed_and_made_again_gets_the_next_dump() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("dumps");
        for makes_it in [true, false] {
            let shared = shared(&path).expect("a folder");
            let mut folder = shared.lock().expect("no panic");
            let before = folder.write(&dump()).expect("written");
            assert!(before.exists());
            std::fs::remove_dir_all(&path).expect("removed");
            if makes_it {
                // Others may not write to a folder for dumps, whatever the umask is.
                nix::unistd::mkdir(&path, nix::sys::stat::Mode::S_IRWXU).expect("made again");
            }
            let after = folder.write(&dump()).expect("written");
            assert!(after.exists() && after != before);
            assert_eq!(folder.written.len(), 1);
        }
    }

    #[test]
    fn the_path_of_a_folder_does_not_depend_on_a_later_working_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let here = std::env::current_dir().expect("a working directory");
        let root: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let below_root = directory.path().strip_prefix("/").expect("absolute");
        let relative = root.join(below_root).join("dumps");
        assert!(relative.is_relative());
        let shared = shared(&relative).expect("a folder");
        let folder = shared.lock().expect("no panic");
        assert!(folder.path.is_absolute());
        let real = |path: &Path| std::fs::canonicalize(path).expect("it is there");
        assert_eq!(real(&folder.path), real(&directory.path().join("dumps")));
    }

    #[test]
    fn a_folder_that_was_replaced_is_checked_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, other) = (directory.path().join("dumps"), directory.path());
        // A slash at the end changes nothing.
        let shared = shared(&path.join("")).expect("a folder");
        let mut folder = shared.lock().expect("no panic");
        std::fs::remove_dir(&path).expect("removed");
        std::os::unix::fs::symlink(other, &path).expect("a link");
        assert!(folder.write(&dump()).is_err());
        assert_eq!(std::fs::read_dir(other).expect("a folder").count(), 1);
    }
}
