//! Files as the two programs write them, and what becomes of them.

use super::*;
use crate::disk::Source;
use crate::model::Limit;
use crate::nvme::log::Access;

/// A file as `nvmetcli save` writes it (nvmetcli 0.8; keys as in its `rdma.json` example).
const NVMET: &str = r#"{
  "hosts": [
    { "nqn": "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555", "dhchap_key": "DHHC-1:00:x:" }
  ],
  "ports": [
    {
      "addr": { "adrfam": "ipv4", "traddr": "192.0.2.1", "treq": "not specified", "trsvcid": "4420", "trtype": "rdma" },
      "ana_groups": [
        { "ana": { "state": "optimized" }, "grpid": 1 },
        { "ana": { "state": "inaccessible" }, "grpid": 2 }
      ],
      "param": { "inline_data_size": "16384", "mdts": "8" },
      "portid": 3,
      "referrals": [],
      "subsystems": [ "nqn.2026-11.test:a" ]
    },
    {
      "addr": { "adrfam": "ipv4", "traddr": "192.0.2.2", "treq": "not specified", "trsvcid": "4420", "trtype": "tcp" },
      "portid": 4,
      "referrals": [],
      "subsystems": []
    }
  ],
  "subsystems": [
    {
      "allowed_hosts": [ "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555" ],
      "attr": {
        "allow_any_host": "0", "cntlid_max": "65519", "cntlid_min": "1",
        "model": "Linux", "serial": "3d83c78b76623f1d", "version": "1.3", "qid_max": "16", "ieee_oui": "0x000000"
      },
      "namespaces": [
        {
          "ana_grpid": 2,
          "device": {
            "nguid": "5b722b05-e9b6-542d-ba80-62010b57775d",
            "path": "/dev/nowhere0",
            "uuid": "26ffc8ce-73b4-321d-9685-7d7a9872c460"
          },
          "enable": 1,
          "nsid": 1
        },
        { "device": { "path": "/dev/nowhere1" }, "enable": 0, "nsid": 2 },
        {
          "device": { "nguid": "ef90689c-6c46-d44c-89c1-4067801309a8", "path": "/dev/nowhere2",
            "uuid": "00000000-0000-0000-0000-000000000000" },
          "enable": 1,
          "nsid": 5
        }
      ],
      "nqn": "nqn.2026-11.test:a"
    },
    { "attr": { "allow_any_host": "1" }, "namespaces": [], "nqn": "testsubsystem_0" }
  ]
}"#;

fn cards() -> Cards {
    [(
        "192.0.2.1".parse().expect("an address"),
        "3b:00.2".to_owned(),
    )]
    .into()
}

fn imported(text: &str, cards: &Cards) -> (Settings, Imported) {
    let imported = import(text, cards).expect("a file");
    let settings = file::parse(Path::new("the result"), &imported.text);
    (settings.expect("no mistake"), imported)
}

fn has_note(imported: &Imported, text: &str) {
    let found = imported.notes.iter().any(|note| note.contains(text));
    assert!(found, "{text:?} is not in {:#?}", imported.notes);
    assert!(imported.text.contains(text));
}

#[test]
fn a_file_of_nvmetcli_becomes_ours_and_each_other_key_is_told() {
    let (settings, imported) = imported(NVMET, &cards());
    let port = &settings.ports[&3];
    assert_eq!(settings.ports.len(), 1);
    assert_eq!(
        (&*port.adapter, port.service),
        ("3b:00.2,address=192.0.2.1", 4420)
    );
    assert_eq!(port.access, [(2, Access::Inaccessible)].into());
    assert_eq!(port.transfer_shift, 8);
    let name: Nqn = "nqn.2026-11.test:a".parse().expect("a name");
    let subsystem = &settings.subsystems[&name];
    assert_eq!(settings.subsystems.len(), 1);
    assert_eq!(
        (&*subsystem.serial, &*subsystem.model),
        ("3d83c78b76623f1d", "Linux")
    );
    assert!(!subsystem.any_host);
    assert_eq!((subsystem.hosts.len(), subsystem.queues), (1, 16));
    let numbers: Vec<u32> = subsystem.namespaces.keys().copied().collect();
    assert_eq!(numbers, [1, 5]);
    let first = &subsystem.namespaces[&1];
    assert_eq!(first.source, Source::File("/dev/nowhere0".into()));
    assert_eq!((first.group, first.shift), (2, 9));
    assert_eq!(
        first.uuid.to_string(),
        "26ffc8ce-73b4-321d-9685-7d7a9872c460"
    );
    let other = &subsystem.namespaces[&5];
    assert_eq!(
        other.uuid.to_string(),
        "ef90689c-6c46-d44c-89c1-4067801309a8"
    );
    for note in [
        "port 4 is left out: its transport is \"tcp\"",
        "port 3: `inline_data_size` = \"16384\" has no equal",
        "subsystem nqn.2026-11.test:a: `ieee_oui` = \"0x000000\" has no equal",
        "namespace 1 of nqn.2026-11.test:a: its NGUID becomes that of `uuid`",
        "namespace 1 of nqn.2026-11.test:a: `block_size` is 512 here",
        "namespace 2 of nqn.2026-11.test:a is left out: it is not enabled",
        "subsystem testsubsystem_0 is left out: ",
        "`dhchap_key` is not shown here",
    ] {
        has_note(&imported, note);
    }
    assert!(!imported.text.contains("DHHC"), "a key is no comment");
}

/// A file as SPDK's `rpc.py save_config` writes it (names of methods and parameters of SPDK 26.05's JSON-RPC page).
const SPDK: &str = r#"{
  "subsystems": [
    { "subsystem": "iobuf", "config": [ { "method": "iobuf_set_options", "params": { "small_pool_count": 8192 } } ] },
    {
      "subsystem": "bdev",
      "config": [
        { "method": "bdev_set_options", "params": { "bdev_io_pool_size": 65535 } },
        { "method": "bdev_nvme_attach_controller", "params": { "name": "Nvme0", "trtype": "PCIe", "traddr": "0000:5e:00.0" } },
        { "method": "bdev_malloc_create", "params": { "name": "Malloc0", "num_blocks": 131072, "block_size": 512,
          "uuid": "e1c24cb1-dd44-4be6-8d67-de92a332013f" } },
        { "method": "bdev_aio_create", "params": { "name": "Aio0", "block_size": 4096, "filename": "/dev/nowhere0" } },
        { "method": "bdev_set_qos_limit", "params": { "name": "Malloc0", "rw_ios_per_sec": 20000,
          "rw_mbytes_per_sec": 100, "r_mbytes_per_sec": 50, "w_mbytes_per_sec": 0 } },
        { "method": "bdev_raid_create", "params": { "name": "Raid0" } }
      ]
    },
    {
      "subsystem": "nvmf",
      "config": [
        { "method": "nvmf_create_transport", "params": { "trtype": "RDMA", "max_queue_depth": 128 } },
        { "method": "nvmf_create_subsystem", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1", "allow_any_host": true,
          "serial_number": "SPDK00000000000001", "model_number": "SPDK bdev Controller", "max_namespaces": 32 } },
        { "method": "nvmf_subsystem_add_host", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1", "host": "nqn.2016-06.io.spdk:host1" } },
        { "method": "nvmf_subsystem_add_ns", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1",
          "namespace": { "nsid": 1, "bdev_name": "Malloc0", "nguid": "37AFFA5B92854BEC9B1B8B1E8E2C2C1C",
            "uuid": "37affa5b-9285-4bec-9b1b-8b1e8e2c2c1c" } } },
        { "method": "nvmf_subsystem_add_ns", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1", "namespace": { "bdev_name": "Nvme0n2" } } },
        { "method": "nvmf_subsystem_add_ns", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1", "namespace": { "nsid": 7, "bdev_name": "Aio0",
          "no_auto_visible": true } } },
        { "method": "nvmf_ns_add_host", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1", "nsid": 7, "host": "nqn.2016-06.io.spdk:host1" } },
        { "method": "nvmf_ns_add_host", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1", "nsid": 9, "host": "nqn.2016-06.io.spdk:host1" } },
        { "method": "nvmf_subsystem_add_ns", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1", "namespace": { "nsid": 8, "bdev_name": "Raid0" } } },
        { "method": "nvmf_subsystem_add_listener", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1",
          "listen_address": { "trtype": "RDMA", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420" } } },
        { "method": "nvmf_subsystem_add_listener", "params": { "nqn": "nqn.2016-06.io.spdk:cnode1",
          "listen_address": { "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4421" } } }
      ]
    }
  ]
}"#;

#[test]
fn a_file_of_spdk_becomes_ours_with_its_ssds() {
    let (settings, imported) = imported(SPDK, &Cards::new());
    let port = &settings.ports[&1];
    assert_eq!(settings.ports.len(), 1);
    assert_eq!(port.adapter, format!("{NO_CARD},address=192.0.2.1"));
    let name: Nqn = "nqn.2016-06.io.spdk:cnode1".parse().expect("a name");
    let subsystem = &settings.subsystems[&name];
    assert!(subsystem.any_host && subsystem.hosts.len() == 1);
    assert_eq!(subsystem.serial, "SPDK00000000000001");
    let of = |nsid| &subsystem.namespaces[&nsid];
    assert_eq!(of(1).source, Source::Memory(131_072 * 512));
    assert_eq!(
        of(1).uuid.to_string(),
        "37affa5b-9285-4bec-9b1b-8b1e8e2c2c1c"
    );
    assert_eq!(
        of(1).limit,
        Some(Limit {
            ios_per_second: Some(20_000),
            bytes_per_second: Some(100 << 20),
            burst: Limit::USUAL_BURST,
        })
    );
    assert_eq!(of(7).limit, None);
    let host: Nqn = "nqn.2016-06.io.spdk:host1".parse().expect("a name");
    assert_eq!((&of(7).hosts, &of(1).hosts), (&Some([host].into()), &None));
    let ssd = "0000:5e:00.0,namespace=2".parse().expect("an address");
    assert_eq!(of(2).source, Source::Ssd(ssd));
    assert_eq!(
        (&of(7).source, of(7).shift),
        (&Source::File("/dev/nowhere0".into()), 12)
    );
    assert_eq!(subsystem.namespaces.len(), 3);
    for note in [
        "listener 192.0.2.1:4420: the card with 192.0.2.1 is not known",
        "bdev Malloc0: a limit `r_mbytes_per_sec` = 50 has no equal",
        "bdev Raid0: `bdev_raid_create` has no equal",
        "namespace 8 of nqn.2016-06.io.spdk:cnode1 is left out: there is no bdev Raid0 here",
        "namespace 2 of nqn.2016-06.io.spdk:cnode1: SPDK derives its identifier from the disk",
        "a listener by TCP at 192.0.2.1 is left out",
        "`nvmf_ns_add_host` is left out: there is no namespace 9 here",
    ] {
        has_note(&imported, note);
    }
}

#[test]
fn what_is_no_configuration_of_a_target_is_refused() {
    let refused = |text| {
        import(text, &Cards::new())
            .map(|_| ())
            .expect_err("no file")
    };
    assert!(matches!(refused("{"), ImportError::Json(_)));
    assert!(matches!(refused("[1, 2]"), ImportError::Kind));
    assert!(matches!(refused("{\"subsystems\": []}"), ImportError::Kind));
    // Values of the wrong kinds are like those that are not there.
    let strange =
        "{\"ports\": [3, {\"addr\": 1}], \"subsystems\": [{\"nqn\": 5, \"namespaces\": 7}]}";
    let (settings, imported) = imported(strange, &Cards::new());
    assert!(settings.ports.is_empty() && settings.subsystems.is_empty());
    has_note(&imported, "port 0 is left out: it has no address");
    has_note(&imported, "no port is for RDMA");
}
