//! Values of the command line. The error for an invalid value says which values are valid.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Returns a parser, for clap, of a number within bounds.
pub(crate) fn within<N: FromStr + PartialOrd + Display + Clone>(
    bounds: RangeInclusive<N>,
) -> impl Fn(&str) -> Result<N, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| {
            format!(
                "{text:?} is no whole number from {} to {}",
                bounds.start(),
                bounds.end()
            )
        })
    }
}

/// Parses a number of hexadecimal digits, without a sign.
pub(crate) fn hex<N: TryFrom<u64>>(digits: &str) -> Option<N> {
    // `from_str_radix` would accept a sign.
    let has_sign = digits.starts_with('+');
    let number = u64::from_str_radix(digits, 16).ok()?;
    N::try_from(number).ok().filter(|_| !has_sign)
}

/// Parses the address of an adapter or a peer.
pub(crate) fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| match text.split_once('%') {
        Some((address, _)) => {
            format!("{text:?} has a scope, which an adapter does not need: {address}")
        }
        None => format!("{text:?} is no IP address"),
    })
}

/// Parses a socket address on this machine.
pub(crate) fn socket(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| format!("{text:?} is no address with a port, such as 127.0.0.1:9401");
    text.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_no_scope_and_a_socket_has_a_port() {
        assert!(address("fe80::1").is_ok() && socket("[::1]:9401").is_ok());
        let scoped = address("fe80::1%eth0").expect_err("a scope");
        assert!(scoped.ends_with("does not need: fe80::1"), "{scoped}");
        assert!(address("1.2.3").is_err() && socket("127.0.0.1").is_err());
    }

    #[test]
    fn a_number_of_hexadecimal_digits_has_no_sign() {
        assert_eq!(hex::<u32>("fFFFffff"), Some(u32::MAX));
        for wrong in ["", "+5", "-5", "0x5", "g", "100000000"] {
            assert_eq!(hex::<u32>(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_no_number_within_the_bounds_is_said_with_them() {
        let parse = within(1_u16..=1024);
        assert_eq!(parse("1024"), Ok(1024));
        for wrong in ["0", "1025", "x", "", "-5", "1.5", "70000"] {
            assert_eq!(
                parse(wrong),
                Err(format!("{wrong:?} is no whole number from 1 to 1024"))
            );
        }
    }
}
