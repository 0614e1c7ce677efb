//! Each method of the control socket, and the requests that the daemon refuses.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use control::{Client, ClientError};
use nvmeof::model::Limit;
use nvmeof::nvme::command::io;
use nvmeof::nvme::fabrics::ANY_CONTROLLER;
use nvmeof::nvme::{Nqn, Status};
use serde_json::{Value, json};

use crate::host::{HOST, transfer};
use crate::process::{KEY, Place, SUBSYSTEM, parsed, run, subsystem};

/// Returns the error text of a refused request.
fn refused(client: &mut Client, method: &str, params: Value) -> Result<String> {
    match client.call::<Value>(method, params) {
        Err(ClientError::Refused(refusal)) => Ok(refusal.message),
        Err(other) => Err(other.into()),
        Ok(answer) => bail!("{method} was done: {answer}"),
    }
}

#[test]
fn each_refusal_says_why_and_nothing_has_changed() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let mut client = place.client()?;
    let settings: String = client.call("settings", Value::Null)?;
    let disk = place.path("disk");
    let table = [
        (
            "format",
            json!({}),
            "no method \"format\"; there are version, status",
        ),
        (
            "subsystem.add",
            json!({"nqn": SUBSYSTEM}),
            "there is a subsystem nqn.2026-11.test:disks already",
        ),
        (
            "subsystem.add",
            json!({"nqn": "x"}),
            "a qualified name begins with",
        ),
        (
            "subsystem.add",
            json!({"nqn": "nqn.2026-11.test:b", "namespace": [{"null": 4096}, {"file": "/nowhere"}]}),
            "namespace 2 of nqn.2026-11.test:b",
        ),
        (
            "subsystem.add",
            json!({"nqn": "nqn.2026-11.test:b", "colour": 1}),
            "unknown field `colour`, expected one of `nqn`",
        ),
        ("subsystem.add", json!([]), "params is an object"),
        (
            "subsystem.remove",
            json!({"nqn": "nqn.2026-11.test:b"}),
            "there is no subsystem nqn.2026-11.test:b",
        ),
        ("subsystem.remove", json!({}), "missing field `nqn`"),
        (
            "subsystem.queues",
            json!({"nqn": SUBSYSTEM, "queues": 129}),
            "number of queues 129: there are 1 to 128",
        ),
        (
            "subsystem.any_host",
            json!({"nqn": "nqn.2026-11.test:b", "any_host": true}),
            "there is no subsystem nqn.2026-11.test:b",
        ),
        (
            "namespace.add",
            json!({"subsystem": "nqn.2026-11.test:b", "null": 4096}),
            "there is no subsystem nqn.2026-11.test:b",
        ),
        (
            "namespace.add",
            json!({"null": 4096}),
            "subsystem is a name",
        ),
        (
            "namespace.add",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "null": 4096}),
            "there is a namespace 1 already",
        ),
        (
            "namespace.add",
            json!({"subsystem": SUBSYSTEM, "file": "/nowhere"}),
            "namespace 2 of nqn.2026-11.test:disks",
        ),
        (
            "namespace.add",
            json!({"subsystem": SUBSYSTEM, "file": disk, "block_size": 100}),
            "block_size is 512 or 4096",
        ),
        (
            "namespace.add",
            json!({"subsystem": SUBSYSTEM, "null": 100}),
            "this is no multiple of the block, 512 bytes: 100 are over",
        ),
        (
            "namespace.remove",
            json!({"subsystem": SUBSYSTEM, "nsid": 2}),
            "there is no namespace 2",
        ),
        (
            "namespace.resize",
            json!({"subsystem": SUBSYSTEM, "nsid": 2}),
            "there is no namespace 2",
        ),
        (
            "namespace.limit",
            json!({"subsystem": SUBSYSTEM, "nsid": 2, "ios_per_second": 1000}),
            "there is no namespace 2",
        ),
        (
            "namespace.limit",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "ios_per_second": 9}),
            "a limit has 10 to 1099511627776 I/Os or 131072 to 1099511627776 bytes per second, and a burst of at most 60 s",
        ),
        (
            "namespace.limit",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "burst_ms": 10}),
            "burst_ms comes with ios_per_second or bytes_per_second",
        ),
        (
            "namespace.hosts",
            json!({"subsystem": SUBSYSTEM, "nsid": 2, "hosts": []}),
            "there is no namespace 2",
        ),
        (
            "namespace.hosts",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "hosts": [""]}),
            "a qualified name begins with nqn.",
        ),
        (
            "host.limit",
            json!({"subsystem": SUBSYSTEM, "host": "nqn.2026-11.test:h", "ios_per_second": 1000}),
            "there is no host nqn.2026-11.test:h",
        ),
        (
            "namespace.fault",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "error": "EIO"}),
            "/disk, fails by no order; one that is `faulty` does",
        ),
        (
            "namespace.fault",
            json!({"subsystem": SUBSYSTEM, "nsid": 2}),
            "there is no namespace 2",
        ),
        (
            "namespace.fault",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "error": "EOOPS"}),
            "there is no error \"EOOPS\"; there are EIO, ENOSPC",
        ),
        (
            "namespace.fault",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "of": "trims"}),
            "there is no of \"trims\"; there are all, reads, writes, flushes",
        ),
        (
            "namespace.fault",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "delay_ms": 3_600_001}),
            "delay_ms is 0 to 3600000",
        ),
        (
            "namespace.fault",
            json!({"subsystem": SUBSYSTEM, "nsid": 1, "every": 0}),
            "every is 1 or more",
        ),
        (
            "host.allow",
            json!({"subsystem": "nqn.2026-11.test:b", "host": "nqn.2026-11.test:h"}),
            "there is no subsystem",
        ),
        (
            "host.allow",
            json!({"subsystem": SUBSYSTEM, "host": "nqn.2026-11.test:h", "key": "/k"}),
            "the key of host nqn.2026-11.test:h, /k: No such file",
        ),
        (
            "host.forbid",
            json!({"subsystem": SUBSYSTEM, "host": "nqn.2026-11.test:h"}),
            "there is no host nqn.2026-11.test:h",
        ),
        (
            "listener.add",
            json!({"adapter": "sim:b,adress=1"}),
            "\"adress\" is no option; did you mean address?",
        ),
        (
            "listener.add",
            json!({"adapter": "nothing"}),
            "no adapter is called \"nothing\"",
        ),
        (
            "listener.add",
            json!({"id": 1, "adapter": "sim:b"}),
            "there is a port 1 already",
        ),
        ("listener.remove", json!({"id": 2}), "there is no port 2"),
        (
            "access.set",
            json!({"port": 2, "group": 1, "state": "change"}),
            "there is no port 2",
        ),
        (
            "access.set",
            json!({"port": 1, "group": 17, "state": "change"}),
            "group 17: there are 1 to 16",
        ),
        (
            "access.set",
            json!({"port": 1, "group": 1, "state": "best"}),
            "there is no state \"best\"; there are optimized",
        ),
        (
            "save",
            json!({"path": "/nowhere/file"}),
            "/nowhere/file: No such file or directory",
        ),
    ];
    for (method, params, wanted) in table {
        let said = refused(&mut client, method, params.clone())?;
        assert!(said.contains(wanted), "{method} {params} said {said}");
    }
    let after: String = client.call("settings", Value::Null)?;
    assert_eq!(after, settings);
    let status: Value = client.call("status", Value::Null)?;
    assert_eq!(status["subsystems"].as_array().map(Vec::len), Some(1));
    assert_eq!(status["ports"].as_array().map(Vec::len), Some(1));
    process.end()
}

#[test]
fn what_is_added_is_there_is_saved_and_can_be_removed() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let mut client = place.client()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;

    let added: Value = client.call(
        "namespace.add",
        json!({"subsystem": SUBSYSTEM, "memory": "1MiB", "group": 2}),
    )?;
    assert_eq!(added, json!({"nsid": 2}));
    let mut sqe = transfer(io::READ, 2047, 1);
    sqe.nsid = 2.into();
    sqe.sgl = host.data(0, 512);
    assert_eq!(host.command(&mut queue, sqe)?.status(), Status::SUCCESS);
    let _: bool = client.call(
        "access.set",
        json!({"port": 1, "group": 2, "state": "inaccessible"}),
    )?;
    assert_eq!(
        host.command(&mut queue, sqe)?.status(),
        Status::ANA_INACCESSIBLE
    );

    std::fs::File::options()
        .write(true)
        .open(place.path("disk"))?
        .set_len(8 << 20)?;
    let grown: Value = client.call(
        "namespace.resize",
        json!({"subsystem": SUBSYSTEM, "nsid": 1}),
    )?;
    assert_eq!(grown, json!({"blocks": 16384}));
    assert_eq!(host.read(&mut queue, 16383, 1, 0, 512)?, Status::SUCCESS);

    let other = json!({"nqn": "nqn.2026-11.test:b", "serial": "b", "namespace": [{"null": "1GiB", "block_size": 4096}]});
    let _: bool = client.call("subsystem.add", other)?;
    let _: bool = client.call(
        "host.allow",
        json!({"subsystem": "nqn.2026-11.test:b", "host": "nqn.2026-11.test:h"}),
    )?;
    let folder = place
        .folder
        .path()
        .file_name()
        .context("a folder has a name")?;
    let own = format!("sim:{}", folder.to_string_lossy());
    let listens: Value = client.call(
        "listener.add",
        json!({"adapter": own, "service": 4421, "workers": 2}),
    )?;
    assert_eq!(listens["id"], 2);
    let status: Value = client.call("status", Value::Null)?;
    assert_eq!(
        status["ports"][1]["workers"].as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(
        status["subsystems"][0]["hosts"],
        json!(["nqn.2026-11.test:h"])
    );

    let limit = json!({"subsystem": SUBSYSTEM, "nsid": 1, "ios_per_second": 1000, "bytes_per_second": "1MiB", "burst_ms": 2000});
    let _: bool = client.call("namespace.limit", limit)?;
    let status: Value = client.call("status", Value::Null)?;
    let limited = &status["subsystems"][1]["namespaces"][0];
    assert_eq!(
        (&limited["ios_per_second"], &limited["bytes_per_second"]),
        (&json!(1000), &json!(1 << 20)),
        "{status}"
    );

    let (b, h) = ("nqn.2026-11.test:b", "nqn.2026-11.test:h");
    let limit = json!({"subsystem": b, "host": h, "bytes_per_second": "2MiB"});
    let _: bool = client.call("host.limit", limit)?;
    // A host that is allowed again keeps its limit.
    let _: bool = client.call("host.allow", json!({"subsystem": b, "host": h}))?;
    let _: bool = client.call("subsystem.queues", json!({"nqn": b, "queues": 4}))?;
    let hosts = json!({"subsystem": b, "nsid": 1, "hosts": [h]});
    let _: bool = client.call("namespace.hosts", hosts)?;
    let status: Value = client.call("status", Value::Null)?;
    let of = &status["subsystems"][0];
    let limits =
        json!([{"host": h, "ios_per_second": 0, "bytes_per_second": 2 << 20, "limited": 0}]);
    assert_eq!(
        (&of["host_limits"], &of["namespaces"][0]["hosts"]),
        (&limits, &json!([h])),
        "{status}"
    );
    assert_eq!(
        status["subsystems"][1]["namespaces"][0]["hosts"],
        Value::Null
    );

    let path = place.path("nvmeofd.toml");
    let saved: Value = client.call("save", Value::Null)?;
    assert_eq!(saved["path"], json!(path));
    let settings = parsed(&path)?;
    assert_eq!((settings.ports.len(), settings.subsystems.len()), (2, 2));
    assert_eq!(settings.ports[&1].access.len(), 1);
    let limit = settings.subsystems[&subsystem()].namespaces[&1].limit;
    assert_eq!(
        limit,
        Some(Limit {
            ios_per_second: Some(1000),
            bytes_per_second: Some(1 << 20),
            burst: Duration::from_secs(2),
        })
    );
    let (of_b, allowed): (Nqn, Nqn) = (b.parse()?, h.parse()?);
    let saved = &settings.subsystems[&of_b];
    assert!(saved.hosts[&allowed].limit.is_some());
    assert_eq!(saved.queues, 4);
    assert_eq!(saved.namespaces[&1].hosts, Some([allowed].into()));
    let of = json!({"subsystem": SUBSYSTEM, "nsid": 1});
    let _: bool = client.call("namespace.limit", of)?;
    let _: bool = client.call("host.limit", json!({"subsystem": b, "host": h}))?;
    let text: String = client.call("settings", Value::Null)?;
    assert!(!text.contains("_per_second"), "{text}");

    let _: bool = client.call("listener.remove", json!({"id": 2}))?;
    let _: bool = client.call(
        "host.forbid",
        json!({"subsystem": "nqn.2026-11.test:b", "host": "nqn.2026-11.test:h"}),
    )?;
    let _: bool = client.call("subsystem.remove", json!({"nqn": "nqn.2026-11.test:b"}))?;
    let _: bool = client.call(
        "namespace.remove",
        json!({"subsystem": SUBSYSTEM, "nsid": 2}),
    )?;
    assert_eq!(
        host.command(&mut queue, sqe)?.status(),
        Status::INVALID_NAMESPACE.dnr()
    );
    let stat: Value = client.call("stat", Value::Null)?;
    assert_eq!(stat["workers"][0]["connections"], 2);
    assert_eq!(stat["namespaces"].as_array().map(Vec::len), Some(1));

    // The daemon's only port is removed, and so the host's connections end. The daemon then waits for a new port.
    let _: bool = client.call("listener.remove", json!({"id": 1}))?;
    assert!(host.response(&mut queue).is_err(), "disconnected");
    let status: Value = client.call("status", Value::Null)?;
    assert_eq!(
        (&status["ports"], &status["controllers"]),
        (&json!([]), &json!([]))
    );
    drop(host);
    process.end()
}

/// A host with a key must authenticate at every subsystem. If the key stayed after the refusal, bit ATR of the result
/// of Connect would be set.
#[test]
fn a_subsystem_that_is_refused_leaves_no_key() -> Result<()> {
    const UUID: &str = "6e766d65-0000-4000-8000-000000000001";
    let place = Place::new()?;
    std::fs::write(place.path("key"), KEY)?;
    place.configure(&place.subsystem(&format!("uuid = \"{UUID}\"\n")))?;
    let process = place.start()?;
    let mut client = place.client()?;
    let mut host = place.host()?;
    let mut must_authenticate = || -> Result<u64> {
        let mut queue = host.queue(0, 32)?;
        let connected = host.connect(&mut queue, &subsystem(), ANY_CONTROLLER)?;
        assert_eq!(connected.status(), Status::SUCCESS);
        host.disconnect(&queue)?;
        Ok(connected.result.get() >> 16)
    };
    let mut other = json!({
        "nqn": "nqn.2026-11.test:b",
        "host": [{"nqn": HOST, "key": place.path("key")}],
        "namespace": [{"null": 4096, "uuid": UUID}],
    });
    let said = refused(&mut client, "subsystem.add", other.clone())?;
    assert!(said.contains(UUID), "{said}");
    assert_eq!(must_authenticate()?, 0, "the key is not there");
    other["namespace"] = json!([{"null": 4096}]);
    let _: bool = client.call("subsystem.add", other)?;
    assert_eq!(must_authenticate()?, 0b10, "the key is there");
    drop(host);
    process.end()
}

/// With `strict`, a saved file with another name of a host could not be read again.
#[test]
fn a_strict_daemon_takes_no_subsystem_whose_host_its_file_may_not_name() -> Result<()> {
    let place = Place::new()?;
    place.prepend("strict = true\n")?;
    let process = place.start()?;
    let mut client = place.client()?;
    let with = |host: &str| json!({"nqn": "nqn.2026-11.test:b", "host": [{"nqn": host}]});
    let said = refused(&mut client, "subsystem.add", with("not-a-nqn"))?;
    assert!(said.contains("not-a-nqn"), "{said}");
    let _: bool = client.call("subsystem.add", with(HOST))?;
    let _: Value = client.call("save", Value::Null)?;
    assert_eq!(parsed(&place.path("nvmeofd.toml"))?.subsystems.len(), 2);
    process.end()
}

#[test]
fn a_faulty_disk_fails_by_order_and_works_again_by_order() -> Result<()> {
    let place = Place::new()?;
    place.configure(&place.subsystem("[[subsystem.namespace]]\nnsid = 2\nfaulty = \"1MiB\""))?;
    let process = place.start()?;
    let mut client = place.client()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    let mut sqe = transfer(io::READ, 2047, 1);
    sqe.nsid = 2.into();
    sqe.sgl = host.data(0, 512);
    assert_eq!(host.command(&mut queue, sqe)?.status(), Status::SUCCESS);
    let mut order = |more: Value| -> Result<Value> {
        let mut params = json!({"subsystem": SUBSYSTEM, "nsid": 2});
        for (key, value) in more.as_object().into_iter().flatten() {
            params[key] = value.clone();
        }
        Ok(client.call("namespace.fault", params)?)
    };
    assert_eq!(
        order(json!({"error": "EIO", "of": "reads", "times": 1}))?["struck"],
        0
    );
    for wanted in [Status::UNRECOVERED_READ.dnr(), Status::SUCCESS] {
        assert_eq!(host.command(&mut queue, sqe)?.status(), wanted);
    }
    // The delay is an hour, but the next order ends it.
    assert_eq!(order(json!({"delay_ms": 3_600_000}))?["struck"], 1);
    host.send(&mut queue, sqe, &[])?;
    assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    assert_eq!(order(json!({}))?["struck"], 2);
    assert_eq!(host.response(&mut queue)?.status(), Status::SUCCESS);
    // The settings still contain the faulty disk.
    let settings: String = client.call("settings", Value::Null)?;
    assert!(settings.contains("faulty = 1048576"), "{settings}");
    drop(host);
    process.end()
}

#[test]
fn the_program_asks_as_a_person_types() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let socket = place.path("control");
    let socket = socket.to_str().expect("a text");
    let (content, said) = run(&[
        "ctl",
        socket,
        "namespace.add",
        &format!("subsystem={SUBSYSTEM}"),
        "null=1GiB",
        "read_only=true",
    ])?;
    assert!(content && said.contains("\"nsid\": 2"), "{said}");
    let (content, said) = run(&["ctl", socket, "settings"])?;
    assert!(
        content && said.contains("null = 1073741824\nblock_size = 512\nread_only = true"),
        "{said}"
    );
    let (content, said) = run(&["ctl", socket, "namespace.remove", "nsid"])?;
    assert!(
        !content && said.contains("\"nsid\" is no KEY=VALUE"),
        "{said}"
    );
    let (content, said) = run(&["ctl", "/nowhere", "status"])?;
    let wanted = "/nowhere: no nvmeofd has this control socket ([control] socket)";
    assert!(!content && said.contains(wanted), "{said}");
    process.end()
}

/// A server that answers like an adapter's control socket.
struct Adapter(
    #[expect(dead_code, reason = "serving ends when the last Notifier is dropped")]
    control::Notifier,
);

impl control::Subject for Adapter {
    fn call(&mut self, _: &str, _: &Value) -> Result<Value, control::rpc::Refusal> {
        Ok(json!({
            "schema": control::schema::SCHEMA, "library": "", "adapter": "sim:a", "process": 1,
            "methods": ["version", "resource", "stat"],
        }))
    }

    fn notices(&mut self) -> Vec<Value> {
        Vec::new()
    }
}

#[test]
fn the_socket_of_an_adapter_is_told_from_nvmeofds_and_the_other_way_round() -> Result<()> {
    let place = Place::new()?;
    let adapter = place.path("adapter");
    let _served = control::serve(&adapter, control::Access::default(), Adapter)?;
    let (content, said) = run(&["ctl", adapter.to_str().expect("a text"), "status"])?;
    let wanted = format!(
        "{0}: this is the control socket of an adapter: `datctl stat {0}`",
        adapter.display()
    );
    assert!(!content && said.contains(&wanted), "{said}");

    let process = place.start()?;
    let ours = place.path("control");
    let other = Client::connect_alike(&ours, control::Side::Adapter);
    let said = other.err().context("it is nvmeofd's")?.to_string();
    let wanted = format!(
        "{0}: this is the control socket of nvmeofd: `nvmeofd ctl {0} status`",
        ours.display()
    );
    assert_eq!(said, wanted);
    process.end()
}
