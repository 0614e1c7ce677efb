//! `datctl info`: what an adapter is.

use std::error::Error;

use comfy_table::Table;
use dat::{CloseFlags, OpenOptions};

pub(crate) fn run(name: &str) -> Result<(), Box<dyn Error>> {
    let ia = dat::ia_open(name, &OpenOptions::default())?;
    let (attributes, provider) = {
        let query = ia.query();
        (query.ia.clone(), query.provider.clone())
    };
    dat::ia_close(ia, CloseFlags::Graceful)?;
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    let rows = [
        ("adapter", attributes.adapter_name),
        ("vendor", attributes.vendor_name),
        ("hardware", version(attributes.hardware_version)),
        ("firmware", version(attributes.firmware_version)),
        ("address", attributes.ia_address.to_string()),
        ("provider", provider.provider_name),
        ("DAT version", version(provider.dapl_version)),
        ("endpoints", attributes.max_eps.to_string()),
        ("DTOs per endpoint", attributes.max_dto_per_ep.to_string()),
        ("EVDs", attributes.max_evds.to_string()),
        ("LMRs", attributes.max_lmrs.to_string()),
        ("bytes per message", attributes.max_message_size.to_string()),
        ("bytes per RDMA", attributes.max_rdma_size.to_string()),
    ];
    for (what, value) in rows {
        table.add_row([what.to_owned(), value]);
    }
    println!("{table}");
    Ok(())
}
