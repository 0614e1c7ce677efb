//! Errors of refused calls: `DAT_RETURN` with its type and subtype, and a sentence with the reason.
//!
//! A `DAT_RETURN` is one 32-bit number: class in bits 31:30, type in 29:16, subtype in 15:0
//! (`dat_error.h`, DAT 1.2). Success is exactly 0 and is no error, so it is not a value here; every
//! [`DatError`] has the error class. The man pages specify the type. The subtype only gives a hint:
//! it names the argument at fault (`DAT_INVALID_ARGn`, counted in the C prototype from 1) or the
//! state the object was in.
//!
//! In addition, a [`DatError`] may contain the name of the Rust argument at fault, one sentence for the user, and two
//! numbers if a limit was exceeded. Comparisons ignore these. An error without a sentence prints the meaning of its
//! subtype. The *device's* error text is longer; the IA keeps it ([`crate::Ia::last_device_error`]).

pub(crate) mod lasting;
mod left;
mod meaning;
pub(crate) mod parking;
pub(crate) mod range;

use core::fmt;
use core::num::NonZeroU64;

pub(crate) use left::Left;

/// The result of a DAT call.
pub type DatResult<T> = Result<T, DatError>;

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident: $repr:ident { $($variant:ident = $value:literal $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`")] $variant = $value,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name in `dat_error.h`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Returns the value with this number.
            #[must_use]
            pub const fn from_value(value: $repr) -> Option<Self> {
                match value { $($value => Some(Self::$variant),)* _ => None }
            }

            /// Returns the number, as DAT 1.2 encodes it.
            #[must_use]
            pub const fn value(self) -> $repr {
                self as $repr
            }
        }
    };
}

numbered! {
    /// The type part of a `DAT_RETURN` (`DAT_RETURN_TYPE`), unshifted: bits 29:16.
    ReturnType: u32 {
        Abort = 0x0001_0000 "DAT_ABORT",
        ConnQualInUse = 0x0002_0000 "DAT_CONN_QUAL_IN_USE",
        InsufficientResources = 0x0003_0000 "DAT_INSUFFICIENT_RESOURCES",
        InternalError = 0x0004_0000 "DAT_INTERNAL_ERROR",
        InvalidHandle = 0x0005_0000 "DAT_INVALID_HANDLE",
        InvalidParameter = 0x0006_0000 "DAT_INVALID_PARAMETER",
        InvalidState = 0x0007_0000 "DAT_INVALID_STATE",
        LengthError = 0x0008_0000 "DAT_LENGTH_ERROR",
        ModelNotSupported = 0x0009_0000 "DAT_MODEL_NOT_SUPPORTED",
        ProviderNotFound = 0x000a_0000 "DAT_PROVIDER_NOT_FOUND",
        PrivilegesViolation = 0x000b_0000 "DAT_PRIVILEGES_VIOLATION",
        ProtectionViolation = 0x000c_0000 "DAT_PROTECTION_VIOLATION",
        QueueEmpty = 0x000d_0000 "DAT_QUEUE_EMPTY",
        QueueFull = 0x000e_0000 "DAT_QUEUE_FULL",
        TimeoutExpired = 0x000f_0000 "DAT_TIMEOUT_EXPIRED",
        ProviderAlreadyRegistered = 0x0010_0000 "DAT_PROVIDER_ALREADY_REGISTERED",
        ProviderInUse = 0x0011_0000 "DAT_PROVIDER_IN_USE",
        InvalidAddress = 0x0012_0000 "DAT_INVALID_ADDRESS",
        InterruptedCall = 0x0013_0000 "DAT_INTERRUPTED_CALL",
        ConnQualUnavailable = 0x0014_0000 "DAT_CONN_QUAL_UNAVAILABLE",
        NotImplemented = 0x0fff_0000 "DAT_NOT_IMPLEMENTED",
    }
}

numbered! {
    /// The subtype part of a `DAT_RETURN` (`DAT_RETURN_SUBTYPE`), with the numbers of DAT 1.2.
    Subtype: u16 {
        None = 0 "DAT_NO_SUBTYPE",
        Interrupted = 1 "DAT_SUB_INTERRUPTED",
        ResourceMemory = 2 "DAT_RESOURCE_MEMORY",
        ResourceDevice = 3 "DAT_RESOURCE_DEVICE",
        ResourceTep = 4 "DAT_RESOURCE_TEP",
        ResourceTevd = 5 "DAT_RESOURCE_TEVD",
        ResourceProtectionDomain = 6 "DAT_RESOURCE_PROTECTION_DOMAIN",
        ResourceMemoryRegion = 7 "DAT_RESOURCE_MEMORY_REGION",
        ResourceErrorHandler = 8 "DAT_RESOURCE_ERROR_HANDLER",
        ResourceCredits = 9 "DAT_RESOURCE_CREDITS",
        ResourceSrq = 10 "DAT_RESOURCE_SRQ",
        HandleIa = 11 "DAT_INVALID_HANDLE_IA",
        HandleEp = 12 "DAT_INVALID_HANDLE_EP",
        HandleLmr = 13 "DAT_INVALID_HANDLE_LMR",
        HandleRmr = 14 "DAT_INVALID_HANDLE_RMR",
        HandlePz = 15 "DAT_INVALID_HANDLE_PZ",
        HandlePsp = 16 "DAT_INVALID_HANDLE_PSP",
        HandleRsp = 17 "DAT_INVALID_HANDLE_RSP",
        HandleCr = 18 "DAT_INVALID_HANDLE_CR",
        HandleCno = 19 "DAT_INVALID_HANDLE_CNO",
        HandleEvdCr = 20 "DAT_INVALID_HANDLE_EVD_CR",
        HandleEvdRequest = 21 "DAT_INVALID_HANDLE_EVD_REQUEST",
        HandleEvdRecv = 22 "DAT_INVALID_HANDLE_EVD_RECV",
        HandleEvdConn = 23 "DAT_INVALID_HANDLE_EVD_CONN",
        HandleEvdAsync = 24 "DAT_INVALID_HANDLE_EVD_ASYNC",
        HandleSrq = 25 "DAT_INVALID_HANDLE_SRQ",
        Handle1 = 26 "DAT_INVALID_HANDLE1",
        Handle2 = 27 "DAT_INVALID_HANDLE2",
        Handle3 = 28 "DAT_INVALID_HANDLE3",
        Handle4 = 29 "DAT_INVALID_HANDLE4",
        Handle5 = 30 "DAT_INVALID_HANDLE5",
        Handle6 = 31 "DAT_INVALID_HANDLE6",
        Handle7 = 32 "DAT_INVALID_HANDLE7",
        Handle8 = 33 "DAT_INVALID_HANDLE8",
        Handle9 = 34 "DAT_INVALID_HANDLE9",
        Handle10 = 35 "DAT_INVALID_HANDLE10",
        Arg1 = 36 "DAT_INVALID_ARG1",
        Arg2 = 37 "DAT_INVALID_ARG2",
        Arg3 = 38 "DAT_INVALID_ARG3",
        Arg4 = 39 "DAT_INVALID_ARG4",
        Arg5 = 40 "DAT_INVALID_ARG5",
        Arg6 = 41 "DAT_INVALID_ARG6",
        Arg7 = 42 "DAT_INVALID_ARG7",
        Arg8 = 43 "DAT_INVALID_ARG8",
        Arg9 = 44 "DAT_INVALID_ARG9",
        Arg10 = 45 "DAT_INVALID_ARG10",
        StateEpUnconnected = 46 "DAT_INVALID_STATE_EP_UNCONNECTED",
        StateEpActiveConnectionPending = 47 "DAT_INVALID_STATE_EP_ACTCONNPENDING",
        StateEpPassiveConnectionPending = 48 "DAT_INVALID_STATE_EP_PASSCONNPENDING",
        StateEpTentativeConnectionPending = 49 "DAT_INVALID_STATE_EP_TENTCONNPENDING",
        StateEpConnected = 50 "DAT_INVALID_STATE_EP_CONNECTED",
        StateEpDisconnected = 51 "DAT_INVALID_STATE_EP_DISCONNECTED",
        StateEpReserved = 52 "DAT_INVALID_STATE_EP_RESERVED",
        StateEpCompletionPending = 53 "DAT_INVALID_STATE_EP_COMPLPENDING",
        StateEpDisconnectPending = 54 "DAT_INVALID_STATE_EP_DISCPENDING",
        StateEpProviderControl = 55 "DAT_INVALID_STATE_EP_PROVIDERCONTROL",
        StateEpNotReady = 56 "DAT_INVALID_STATE_EP_NOTREADY",
        StateEpRecvWatermark = 57 "DAT_INVALID_STATE_EP_RECV_WATERMARK",
        StateEpPz = 58 "DAT_INVALID_STATE_EP_PZ",
        StateEpEvdRequest = 59 "DAT_INVALID_STATE_EP_EVD_REQUEST",
        StateEpEvdRecv = 60 "DAT_INVALID_STATE_EP_EVD_RECV",
        StateEpEvdConnect = 61 "DAT_INVALID_STATE_EP_EVD_CONNECT",
        StateEpUnconfigured = 62 "DAT_INVALID_STATE_EP_UNCONFIGURED",
        StateEpUnconfiguredReserved = 63 "DAT_INVALID_STATE_EP_UNCONFRESERVED",
        StateEpUnconfiguredPassive = 64 "DAT_INVALID_STATE_EP_UNCONFPASSIVE",
        StateEpUnconfiguredTentative = 65 "DAT_INVALID_STATE_EP_UNCONFTENTATIVE",
        StateCnoInUse = 66 "DAT_INVALID_STATE_CNO_IN_USE",
        StateCnoDead = 67 "DAT_INVALID_STATE_CNO_DEAD",
        StateEvdOpen = 68 "DAT_INVALID_STATE_EVD_OPEN",
        StateEvdEnabled = 69 "DAT_INVALID_STATE_EVD_ENABLED",
        StateEvdDisabled = 70 "DAT_INVALID_STATE_EVD_DISABLED",
        StateEvdWaitable = 71 "DAT_INVALID_STATE_EVD_WAITABLE",
        StateEvdUnwaitable = 72 "DAT_INVALID_STATE_EVD_UNWAITABLE",
        StateEvdInUse = 73 "DAT_INVALID_STATE_EVD_IN_USE",
        StateEvdConfigNotify = 74 "DAT_INVALID_STATE_EVD_CONFIG_NOTIFY",
        StateEvdConfigSolicited = 75 "DAT_INVALID_STATE_EVD_CONFIG_SOLICITED",
        StateEvdConfigThreshold = 76 "DAT_INVALID_STATE_EVD_CONFIG_THRESHOLD",
        StateEvdWaiter = 77 "DAT_INVALID_STATE_EVD_WAITER",
        StateEvdAsync = 78 "DAT_INVALID_STATE_EVD_ASYNC",
        StateIaInUse = 79 "DAT_INVALID_STATE_IA_IN_USE",
        StateLmrInUse = 80 "DAT_INVALID_STATE_LMR_IN_USE",
        StateLmrFree = 81 "DAT_INVALID_STATE_LMR_FREE",
        StatePzInUse = 82 "DAT_INVALID_STATE_PZ_IN_USE",
        StatePzFree = 83 "DAT_INVALID_STATE_PZ_FREE",
        StateSrqOperational = 84 "DAT_INVALID_STATE_SRQ_OPERATIONAL",
        StateSrqError = 85 "DAT_INVALID_STATE_SRQ_ERROR",
        StateSrqInUse = 86 "DAT_INVALID_STATE_SRQ_IN_USE",
        PrivilegesRead = 87 "DAT_PRIVILEGES_READ",
        PrivilegesWrite = 88 "DAT_PRIVILEGES_WRITE",
        PrivilegesRdmaRead = 89 "DAT_PRIVILEGES_RDMA_READ",
        PrivilegesRdmaWrite = 90 "DAT_PRIVILEGES_RDMA_WRITE",
        ProtectionRead = 91 "DAT_PROTECTION_READ",
        ProtectionWrite = 92 "DAT_PROTECTION_WRITE",
        ProtectionRdmaRead = 93 "DAT_PROTECTION_RDMA_READ",
        ProtectionRdmaWrite = 94 "DAT_PROTECTION_RDMA_WRITE",
        AddressUnsupported = 95 "DAT_INVALID_ADDRESS_UNSUPPORTED",
        AddressUnreachable = 96 "DAT_INVALID_ADDRESS_UNREACHABLE",
        AddressMalformed = 97 "DAT_INVALID_ADDRESS_MALFORMED",
        NameNotRegistered = 98 "DAT_NAME_NOT_REGISTERED",
        MajorNotFound = 99 "DAT_MAJOR_NOT_FOUND",
        MinorNotFound = 100 "DAT_MINOR_NOT_FOUND",
        ThreadSafetyNotFound = 101 "DAT_THREAD_SAFETY_NOT_FOUND",
    }
}

/// The error of a refused call.
#[derive(Clone, Copy)]
pub struct DatError {
    kind: ReturnType,
    subtype: Subtype,
    argument: &'static str,
    detail: &'static str,
    excess: Option<Excess>,
}

/// Two numbers of an error: an amount requested and its limit, or the packed counts of the objects left ([`Left`]). Bit
/// [`LEFT`] of `allowed` marks the counts. `asked` is never 0, so that `Option<Excess>` needs no additional memory.
#[derive(Clone, Copy)]
struct Excess {
    asked: NonZeroU64,
    allowed: u64,
}

/// Bit that is set in no limit. It marks an `Excess` that holds the counts of objects left.
const LEFT: u64 = 1 << 63;

impl DatError {
    const CLASS_ERROR: u32 = 0x8000_0000;
    const CLASS_MASK: u32 = 0xc000_0000;
    const TYPE_MASK: u32 = 0x3fff_0000;

    /// Creates an error without a sentence.
    #[must_use]
    pub const fn new(kind: ReturnType, subtype: Subtype) -> Self {
        Self {
            kind,
            subtype,
            argument: "",
            detail: "",
            excess: None,
        }
    }

    /// Replaces the name of the argument at fault, if the error has one.
    #[must_use]
    pub(crate) const fn naming(mut self, argument: &'static str) -> Self {
        if !self.argument.is_empty() {
            self.argument = argument;
        }
        self
    }

    /// Adds a sentence that gives the user the reason.
    #[must_use]
    pub const fn because(mut self, detail: &'static str) -> Self {
        self.detail = detail;
        self
    }

    /// Adds the amount requested and its limit.
    #[must_use]
    pub(crate) const fn over(mut self, asked: u64, allowed: u64) -> Self {
        self.excess = match NonZeroU64::new(asked) {
            Some(asked) => Some(Excess {
                asked,
                allowed: allowed & !LEFT,
            }),
            None => None,
        };
        self
    }

    /// Adds the counts of the objects that are left in the object to be closed.
    #[must_use]
    pub(crate) fn with_left(mut self, left: Left) -> Self {
        let (first, second) = left.packed();
        self.excess = NonZeroU64::new(first | LEFT).map(|asked| Excess {
            asked,
            allowed: second | LEFT,
        });
        self
    }

    /// Returns the counts of the objects left, if these are the reason for the refusal.
    fn left(self) -> Option<Left> {
        match self.excess {
            Some(Excess { asked, allowed }) if allowed & LEFT != 0 => {
                Some(Left::unpacked(asked.get() & !LEFT, allowed & !LEFT))
            }
            _ => None,
        }
    }

    /// Returns the type (`DAT_GET_TYPE`).
    #[must_use]
    pub const fn return_type(self) -> ReturnType {
        self.kind
    }

    /// Returns the subtype (`DAT_GET_SUBTYPE`).
    #[must_use]
    pub const fn subtype(self) -> Subtype {
        self.subtype
    }

    /// Returns the name of the Rust argument that is at fault; `None` if none is. (The subtype counts the arguments of
    /// the C prototype.)
    #[must_use]
    pub const fn argument(self) -> Option<&'static str> {
        if self.argument.is_empty() {
            None
        } else {
            Some(self.argument)
        }
    }

    /// Returns the sentence, or an empty string.
    #[must_use]
    pub const fn detail(self) -> &'static str {
        self.detail
    }

    /// Returns the amount requested and its limit, if the amount was the reason for the refusal.
    #[must_use]
    pub const fn excess(self) -> Option<(u64, u64)> {
        match self.excess {
            Some(Excess { asked, allowed }) if allowed & LEFT == 0 => Some((asked.get(), allowed)),
            _ => None,
        }
    }

    /// Returns the text for an error without a sentence: the meaning of its subtype, or of its type if it has no
    /// subtype.
    const fn meaning(self) -> &'static str {
        if matches!(self.subtype, Subtype::None) {
            self.kind.meaning()
        } else {
            self.subtype.meaning()
        }
    }

    /// Returns the error without its sentence, to be printed: names, number, and the argument at fault.
    pub fn names(self) -> impl fmt::Display {
        Names(self)
    }

    /// Returns the `DAT_RETURN` number.
    #[must_use]
    pub const fn code(self) -> u32 {
        // CAST: widening; type and subtype have separate bits.
        Self::CLASS_ERROR | self.kind.value() | self.subtype.value() as u32
    }

    pub(crate) const fn handle(subtype: Subtype) -> Self {
        Self::new(ReturnType::InvalidHandle, subtype)
    }

    pub(crate) const fn parameter(subtype: Subtype, argument: &'static str) -> Self {
        Self {
            argument,
            ..Self::new(ReturnType::InvalidParameter, subtype)
        }
    }

    pub(crate) const fn state(subtype: Subtype) -> Self {
        Self::new(ReturnType::InvalidState, subtype)
    }

    pub(crate) const fn resources(subtype: Subtype) -> Self {
        Self::new(ReturnType::InsufficientResources, subtype)
    }

    pub(crate) const fn unsupported() -> Self {
        Self::new(ReturnType::ModelNotSupported, Subtype::None)
    }
}

struct Names(DatError);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        f.write_str(error.kind.name())?;
        if error.subtype != Subtype::None {
            write!(f, "|{}", error.subtype.name())?;
        }
        write!(f, " ({:#010x})", error.code())?;
        if let Some(argument) = error.argument() {
            write!(f, ", argument `{argument}`")?;
        }
        Ok(())
    }
}

/// Two errors are equal if their `DAT_RETURN` numbers are equal. All other members are ignored.
impl PartialEq for DatError {
    fn eq(&self, other: &Self) -> bool {
        self.code() == other.code()
    }
}
impl Eq for DatError {}

impl fmt::Display for DatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentence = match self.detail {
            "" => self.meaning(),
            detail => detail,
        };
        write!(f, "{}: {sentence}", self.names())?;
        if let Some((asked, allowed)) = self.excess() {
            write!(f, ": {asked} asked for, {allowed} at most")?;
        }
        if let Some(left) = self.left() {
            write!(f, ": {left}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for DatError {}

/// Returns the names of the type and of the subtype (empty for none), as `dat_strerror` does. `None` if the number is
/// not a `DAT_RETURN` of DAT 1.2. A type without the error class is accepted, because some providers return one.
#[must_use]
pub fn strerror(code: u32) -> Option<(&'static str, &'static str)> {
    if code == 0 {
        return Some(("DAT_SUCCESS", ""));
    }
    if code & DatError::CLASS_MASK & !DatError::CLASS_ERROR != 0 {
        return None;
    }
    let kind = ReturnType::from_value(code & DatError::TYPE_MASK)?;
    let subtype = Subtype::from_value(
        u16::try_from(code & !(DatError::CLASS_MASK | DatError::TYPE_MASK)).ok()?,
    )?;
    let minor = if subtype == Subtype::None {
        ""
    } else {
        subtype.name()
    };
    Some((kind.name(), minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_argument_of_the_rust_call() {
        let error =
            DatError::parameter(Subtype::Arg3, "conn_qual").because("connection qualifier 0");
        assert_eq!(error.argument(), Some("conn_qual"));
        assert_eq!(
            error.to_string(),
            "DAT_INVALID_PARAMETER|DAT_INVALID_ARG3 (0x80060026), argument `conn_qual`: connection qualifier 0"
        );
        assert_eq!(DatError::state(Subtype::None).argument(), None);
    }

    #[test]
    fn an_error_shows_its_names_its_number_and_its_reason() {
        let error = DatError::state(Subtype::StateEpConnected).because("disconnect first");
        assert_eq!(error.code(), 0x8007_0032);
        assert_eq!(
            error.to_string(),
            "DAT_INVALID_STATE|DAT_INVALID_STATE_EP_CONNECTED (0x80070032): disconnect first"
        );
    }

    #[test]
    fn an_error_without_a_sentence_says_what_its_numbers_mean() {
        for &kind in ReturnType::ALL {
            for &subtype in Subtype::ALL {
                let error = DatError::new(kind, subtype);
                let expected = if subtype == Subtype::None {
                    kind.meaning()
                } else {
                    subtype.meaning()
                };
                assert_eq!(error.to_string(), format!("{}: {expected}", error.names()));
            }
        }
    }

    #[test]
    fn an_error_about_a_limit_says_both_numbers() {
        let error = DatError::resources(Subtype::ResourceTevd)
            .because("evd_min_qlen is beyond max_evd_qlen")
            .over(5_000_000, 4_194_287);
        assert_eq!(error.excess(), Some((5_000_000, 4_194_287)));
        assert_eq!(
            error.to_string(),
            "DAT_INSUFFICIENT_RESOURCES|DAT_RESOURCE_TEVD (0x80030005): evd_min_qlen is beyond max_evd_qlen: 5000000 asked for, 4194287 at most"
        );
    }

    #[test]
    fn the_detail_takes_no_part_in_comparisons() {
        let error = DatError::parameter(Subtype::Arg3, "iov");
        assert_eq!(error, error.because("outside its LMR"));
        assert_ne!(error, DatError::parameter(Subtype::Arg2, "iov"));
    }

    #[test]
    fn subtypes_count_without_gaps_as_in_the_1_2_header() {
        for (number, subtype) in Subtype::ALL.iter().enumerate() {
            assert_eq!(usize::from(subtype.value()), number);
        }
        // Boundary values, taken from dat_error.h.
        assert_eq!(Subtype::HandleSrq.value(), 25);
        assert_eq!(Subtype::Arg1.value(), 36);
        assert_eq!(Subtype::StateEpUnconnected.value(), 46);
        assert_eq!(Subtype::StateSrqInUse.value(), 86);
        assert_eq!(Subtype::ThreadSafetyNotFound.value(), 101);
    }

    #[test]
    fn strerror_names_every_defined_number_and_refuses_the_others() {
        for &kind in ReturnType::ALL {
            for &subtype in Subtype::ALL {
                let (major, minor) =
                    strerror(DatError::new(kind, subtype).code()).expect("defined");
                assert_eq!(major, kind.name());
                assert_eq!(minor.is_empty(), subtype == Subtype::None);
            }
        }
        assert_eq!(strerror(0), Some(("DAT_SUCCESS", "")));
        assert_eq!(strerror(0x8000_0001), None);
        assert_eq!(strerror(0x8015_0000), None, "2.0 only");
        assert_eq!(strerror(0x8001_0066), None, "no such subtype");
    }
}
