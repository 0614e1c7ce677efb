//! Compares the capability pages with those that Linux set by SET_HCA_CAP on a virtual function of a newer card.
//!
//! These pages were the capabilities in force on that function, including Linux's changes. See `testdata/README.md`.

use mlx_prm::{AtomicCaps, CapType, CmdHcaCap, CmdHcaCap2, Layout, OdpCaps, RoceCap};

const RECORDED: &str = include_str!("../testdata/connectx-vf-set_hca_cap.txt");
/// Number of recorded bytes of a page.
const RECORDED_BYTES: usize = 0x100;

/// Returns the page of this type as a layout. Bytes that were not recorded are zero.
fn page<T: Layout>(page_type: CapType) -> T {
    let heading = page_type.to_string();
    let mut bytes = vec![0; T::SIZE.max(RECORDED_BYTES)];
    let rows = RECORDED
        .lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .map_while(|line| line.split_once(": "));
    let mut count = 0;
    for (offset, words) in rows {
        let mut at = usize::from_str_radix(offset, 16).expect("an offset");
        for word in words.split(' ') {
            let word = u32::from_str_radix(word, 16).expect("a word");
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
            at += 4;
        }
        count += 1;
    }
    assert!(count > 0, "{heading} is in the file");
    T::read_from_bytes(&bytes[..T::SIZE]).expect("its size")
}

#[test]
fn a_newer_virtual_function_has_what_a_driver_of_roce_needs() {
    let caps: CmdHcaCap = page(CapType::GENERAL);
    assert_eq!((caps.port_type(), caps.num_ports()), (1, 1), "Ethernet");
    assert!(caps.rc() && caps.ud() && caps.roce() && caps.roce_rw_supported());
    assert_eq!((caps.cqe_version(), caps.log_pg_sz()), (1, 12));
    assert_eq!((caps.log_max_eq(), caps.max_num_eqs()), (5, 28));
    assert_eq!((caps.log_max_qp(), caps.log_max_cq()), (0x11, 0x18));
    assert_eq!((caps.log_max_msg(), caps.log_max_mrw_sz()), (30, 64));
    // Linux disables signatures (0) and sets UAR pages of 4 KiB (0).
    assert_eq!((caps.cmdif_checksum(), caps.log_uar_page_sz()), (0, 0));
    // The lists of the function's vport have 128 and 2,048 addresses. Another function manages the e-switch.
    assert_eq!(
        (
            caps.log_max_current_uc_list(),
            caps.log_max_current_mc_list()
        ),
        (7, 11)
    );
    assert!(!caps.eswitch_manager() && caps.vport_counters());
    // Another function governs the port's traffic classes.
    assert!(!caps.ets());
    assert!(caps.nic_flow_table() && caps.eth_net_offloads());
    // Timestamps of queues support only the free-running format.
    assert_eq!((caps.sq_ts_format(), caps.rq_ts_format()), (0, 0));
    assert!(caps.relaxed_ordering_write() && caps.relaxed_ordering_read());
}

#[test]
fn its_roce_page_has_both_versions_a_source_port_of_ours_and_forced_loopback() {
    let roce: RoceCap = page(CapType::ROCE);
    // Bit 0 is RoCE v1, bit 2 RoCE v2.
    assert_eq!((roce.roce_version(), roce.l3_type()), (0b101, 0b111));
    assert_eq!(roce.r_roce_dest_udp_port(), 4791);
    assert_eq!(
        (
            roce.r_roce_min_src_udp_port(),
            roce.r_roce_max_src_udp_port()
        ),
        (0xc000, 0xffff)
    );
    assert_eq!(roce.roce_address_table_size(), 255);
    assert!(roce.sw_r_roce_src_udp_port() && roce.fl_rc_qp_when_roce_enabled());
}

/// Linux writes this page as zero except for the mode, whatever the current values are.
#[test]
fn the_atomic_page_is_written_with_its_mode_alone() {
    let mut wanted = AtomicCaps::new();
    wanted.set_atomic_req_8B_endianness_mode(1);
    assert_eq!(page::<AtomicCaps>(CapType::ATOMIC), wanted);
}

/// Named bits encode back to the same values; only the vendor knows the meaning of the other bits.
#[test]
fn named_bits_of_every_page_encode_back() {
    fn named<T: Layout>(page_type: CapType) {
        let page: T = page(page_type);
        let again = page.reencode();
        let both = page.as_bytes().iter().zip(again.as_bytes());
        assert!(both.clone().all(|(all, named)| named & !all == 0));
        assert!(both.clone().any(|(_, named)| *named != 0), "{page_type}");
    }
    named::<CmdHcaCap>(CapType::GENERAL);
    named::<CmdHcaCap2>(CapType::GENERAL_2);
    named::<OdpCaps>(CapType::ODP);
    named::<RoceCap>(CapType::ROCE);
}
