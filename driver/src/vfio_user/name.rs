//! Names of functions behind vfio-user servers.

use std::path::Path;

/// Returns the name of the function that the server at this socket implements.
pub(crate) fn function_name(path: &Path) -> String {
    format!("vfio-user:{}", path.display())
}
