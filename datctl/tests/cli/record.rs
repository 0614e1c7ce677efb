//! `datctl record`: a function is recorded to a file, and simulated from this file.

use std::fs;
use std::path::Path;

use hw_sim::Profile;
use serde_json::Value;

use crate::served::{Served, datctl, json};
use crate::tree::names;

/// Records `function` into a file of a directory. Returns the report, and the file's path and text.
fn record(function: &str, directory: &Path, name: &str) -> (Value, String, String) {
    let path = directory.join(name).display().to_string();
    let (code, report) = json(&["record", function, &path]);
    assert_eq!(code, Some(0), "{report:#}");
    let text = fs::read_to_string(&path).expect("the record");
    (report, path, text)
}

/// For every generation the file is a profile that describes the recorded function. A function that is simulated from
/// the file comes up as an adapter, and a record of this function is the same.
#[test]
fn a_recorded_function_is_a_profile_that_comes_up_and_records_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    for generation in Profile::generations() {
        let name = format!("{generation}.toml");
        let function = format!("sim:a,profile={generation}");
        let (report, path, text) = record(&function, directory.path(), &name);
        assert_eq!(report["simulated"], format!("sim:NAME,profile={path}"));
        let profile = Profile::load(&text).expect("a profile");
        assert_eq!(report["device_id"], format!("{:#06x}", profile.device_id));
        let again = tempfile::tempdir().expect("a directory");
        let (_, _, same) = record(&format!("sim:a,profile={path}"), again.path(), &name);
        assert_eq!(same, text, "{generation}");
        let (code, info) = json(&["info", &format!("sim:a,profile={path}")]);
        if generation == "connectx-6-ib" {
            // The driver supports only RoCE, and this generation's port is InfiniBand.
            assert_eq!(code, Some(1), "{info:#}");
            continue;
        }
        assert_eq!(code, Some(0), "{generation}: {info:#}");
        assert_eq!(info["device_id"], report["device_id"]);
        assert_eq!(info["firmware"], report["firmware"]);
    }
}

/// Two functions that are simulated from a record exchange messages.
#[test]
fn a_record_of_a_connectx_6_dx_carries_messages() {
    let directory = tempfile::tempdir().expect("a directory");
    let (report, path, text) = record("sim:a,profile=connectx-6-dx", directory.path(), "dx.toml");
    assert_eq!(report["product"], "ConnectX-6 Dx");
    assert!(text.contains("name = \"dx\""), "{text}");
    let side = |name: &str| format!("sim:{name},profile={path}");
    let output = datctl(&["ping", &side("a"), &side("b"), "--count", "10"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    // The record of a physical function also describes its virtual functions.
    let (code, info) = json(&["info", &format!("sim:card/vf0,profile={path}")]);
    assert_eq!(code, Some(0), "{info:#}");
    assert_eq!(info["device_id"], "0x101e");
}

#[test]
fn a_file_that_is_there_stays_and_one_that_cannot_be_is_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let there = directory.path().join("there.toml");
    fs::write(&there, "precious").expect("written");
    for (function, file, why) in [
        (
            "sim:a",
            there.clone(),
            "is there already, and is not overwritten",
        ),
        (
            "sim:a",
            directory.path().join("no/such/place"),
            "No such file",
        ),
        ("sim:a", directory.path().to_owned(), "is there already"),
        (
            "nothing",
            directory.path().join("new"),
            "no adapter is called",
        ),
        (
            "vfio-user:/nonexistent/socket",
            directory.path().join("new"),
            "/nonexistent/socket",
        ),
    ] {
        let file = file.display().to_string();
        let (code, report) = json(&["record", function, &file]);
        let error = report["error"].as_str().expect("an error");
        assert_eq!(code, Some(1), "{error}");
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(fs::read_to_string(&there).expect("readable"), "precious");
    assert_eq!(names(directory.path()), ["there.toml"]);
}

/// The record contains no identifier of its card.
#[test]
fn a_record_of_another_process_function_does_not_have_its_mac() {
    let served = Served::card(&["--vf", "0:mac=02:ba:dc:0f:fe:e5"]);
    let directory = tempfile::tempdir().expect("a directory");
    let (report, _, text) = record(&served.name("card.vf0"), directory.path(), "vf.toml");
    assert_eq!(report["product"], "ConnectX-5 VF");
    assert!(text.contains("permanent address present"), "{text}");
    let squeezed: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    assert!(!squeezed.contains("0ffee5"), "{text}");
}
