//! Meaning of types and subtypes: the text of an error without a sentence, and the text of `datctl explain`.

use super::{ReturnType, Subtype};

impl ReturnType {
    /// Returns the meaning of the type. For some types, the text also says what to do.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Abort => "The device is dead. Close the adapter; it can be opened again.",
            Self::ConnQualInUse => "A service point listens at this qualifier already.",
            Self::InsufficientResources => {
                "The queue is full (dequeue completions first), or a limit of the adapter is reached."
            }
            Self::InternalError => "The device refused; `Ia::last_device_error` has its words.",
            Self::InvalidHandle => {
                "The object is gone, or is of another adapter or kind. The subtype says which argument it was."
            }
            Self::InvalidParameter => {
                "An argument makes no sense, such as a piece that leaves its region."
            }
            Self::InvalidState => {
                "Not now: the endpoint is not connected, the zone still has objects, another thread waits already."
            }
            Self::LengthError => "Source and target of an RDMA do not fit each other.",
            Self::ModelNotSupported => "The adapter cannot do it in this way.",
            Self::ProviderNotFound => "No adapter has this name.",
            Self::PrivilegesViolation => "The region lacks the right.",
            Self::ProtectionViolation => {
                "The region is gone, or is of another zone than the endpoint."
            }
            Self::QueueEmpty => "No event, not yet. No failure.",
            Self::QueueFull => {
                "The EVD has no room for the event that was to be put into it: dequeue first, or resize it."
            }
            Self::TimeoutExpired => {
                "The time given to a wait is over, and there was no event. No failure."
            }
            Self::ProviderAlreadyRegistered => "The registry has an adapter of this name already.",
            Self::ProviderInUse => "The adapter is open, and so it stays registered.",
            Self::InvalidAddress => {
                "The port is down, or no host on the network answers for the address."
            }
            Self::InterruptedCall => "A signal ended the wait.",
            Self::ConnQualUnavailable => "No qualifier is free.",
            Self::NotImplemented => "This library does not have the call.",
        }
    }
}

/// Makes the text about a handle.
macro_rules! no_handle {
    ($what:literal) => {
        concat!(
            "no ",
            $what,
            " of this adapter has this handle: it is null, of another kind or adapter, or its object was freed"
        )
    };
}

/// Makes the text about an argument.
macro_rules! argument {
    ($n:literal) => {
        concat!(
            "argument ",
            $n,
            " of the call as C writes it, counted from 1"
        )
    };
}

impl Subtype {
    /// Returns the meaning that the subtype adds to the type.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::None => "nothing more is said",
            Self::Interrupted => "a signal ended the wait",
            Self::ResourceMemory => "there is too little memory, or no descriptor is left",
            Self::ResourceDevice => "the device has no more, or cannot be had",
            Self::ResourceTep => "there is no room for one more endpoint, or in its queues",
            Self::ResourceTevd => "there is no room for one more EVD, or for so many events",
            Self::ResourceProtectionDomain => "there is no room for one more zone",
            Self::ResourceMemoryRegion => "there is no room for one more region, or for its memory",
            Self::ResourceErrorHandler => "there is no room for one more error handler",
            Self::ResourceCredits => "there are no credits left",
            Self::ResourceSrq => "there is no room for one more SRQ, or in it",
            Self::HandleIa => {
                "no adapter is open by this handle: it is null, of another kind, or was closed"
            }
            Self::HandleEp => no_handle!("endpoint"),
            Self::HandleLmr => no_handle!("LMR"),
            Self::HandleRmr => no_handle!("RMR"),
            Self::HandlePz => no_handle!("zone"),
            Self::HandlePsp => no_handle!("public service point"),
            Self::HandleRsp => no_handle!("reserved service point"),
            Self::HandleCr => no_handle!("request to connect"),
            Self::HandleCno => no_handle!("CNO"),
            Self::HandleEvdCr => no_handle!("EVD for requests to connect"),
            Self::HandleEvdRequest => no_handle!("EVD for requests"),
            Self::HandleEvdRecv => no_handle!("EVD for receives"),
            Self::HandleEvdConn => no_handle!("EVD for connections"),
            Self::HandleEvdAsync => no_handle!("asynchronous EVD"),
            Self::HandleSrq => no_handle!("SRQ"),
            Self::Handle1
            | Self::Handle2
            | Self::Handle3
            | Self::Handle4
            | Self::Handle5
            | Self::Handle6
            | Self::Handle7
            | Self::Handle8
            | Self::Handle9
            | Self::Handle10 => no_handle!("object"),
            Self::Arg1 => argument!(1),
            Self::Arg2 => argument!(2),
            Self::Arg3 => argument!(3),
            Self::Arg4 => argument!(4),
            Self::Arg5 => argument!(5),
            Self::Arg6 => argument!(6),
            Self::Arg7 => argument!(7),
            Self::Arg8 => argument!(8),
            Self::Arg9 => argument!(9),
            Self::Arg10 => argument!(10),
            Self::StateEpUnconnected => "the endpoint is not connected",
            Self::StateEpActiveConnectionPending => "the endpoint is connecting",
            Self::StateEpPassiveConnectionPending | Self::StateEpUnconfiguredPassive => {
                "a request to connect has the endpoint, and waits for an answer"
            }
            Self::StateEpTentativeConnectionPending | Self::StateEpUnconfiguredTentative => {
                "a request to connect has the endpoint on loan, and waits for an answer"
            }
            Self::StateEpConnected => "the endpoint is connected",
            Self::StateEpDisconnected => "the endpoint is disconnected, and was not reset",
            Self::StateEpReserved | Self::StateEpUnconfiguredReserved => {
                "a reserved service point has the endpoint"
            }
            Self::StateEpCompletionPending => {
                "the endpoint has accepted a request, and is not connected yet"
            }
            Self::StateEpDisconnectPending => "the endpoint is disconnecting",
            Self::StateEpProviderControl => "the provider has the endpoint",
            Self::StateEpNotReady => "the endpoint is not ready",
            Self::StateEpRecvWatermark => "a watermark of the endpoint's receives",
            Self::StateEpPz => "the endpoint's zone",
            Self::StateEpEvdRequest => "the endpoint's EVD for requests",
            Self::StateEpEvdRecv => "the endpoint's EVD for receives",
            Self::StateEpEvdConnect => "the endpoint's EVD for connections",
            Self::StateEpUnconfigured => "the endpoint is not configured",
            Self::StateCnoInUse => "the CNO is in use",
            Self::StateCnoDead => "the CNO is dead",
            Self::StateEvdOpen => "no thread waits on the EVD",
            Self::StateEvdEnabled => "the EVD is enabled",
            Self::StateEvdDisabled => "the EVD is disabled",
            Self::StateEvdWaitable => "the EVD is waitable",
            Self::StateEvdUnwaitable => {
                "the EVD was made unwaitable: evd_dequeue works, and evd_clear_unwaitable undoes it"
            }
            Self::StateEvdInUse => "the EVD is in use",
            Self::StateEvdConfigNotify => "events of the EVD are told for some completions only",
            Self::StateEvdConfigSolicited => "events of the EVD are told for solicited ones only",
            Self::StateEvdConfigThreshold => "the EVD counts events up to a threshold",
            Self::StateEvdWaiter => "a thread waits on the EVD already, and only one can",
            Self::StateEvdAsync => "it is the asynchronous EVD",
            Self::StateIaInUse => "objects are left in the adapter",
            Self::StateLmrInUse => "the LMR is in use",
            Self::StateLmrFree => "the LMR is free",
            Self::StatePzInUse => "the zone is in use",
            Self::StatePzFree => "the zone is free",
            Self::StateSrqOperational => "the SRQ works",
            Self::StateSrqError => "the SRQ is in error: free it, and make another",
            Self::StateSrqInUse => "the SRQ is in use",
            Self::PrivilegesRead => "the right DAT_MEM_PRIV_LOCAL_READ",
            Self::PrivilegesWrite => "the right DAT_MEM_PRIV_LOCAL_WRITE",
            Self::PrivilegesRdmaRead => "the right DAT_MEM_PRIV_REMOTE_READ",
            Self::PrivilegesRdmaWrite => "the right DAT_MEM_PRIV_REMOTE_WRITE",
            Self::ProtectionRead => "local memory that is read",
            Self::ProtectionWrite => "local memory that is written",
            Self::ProtectionRdmaRead => "the peer's memory that is read",
            Self::ProtectionRdmaWrite => "the peer's memory that is written",
            Self::AddressUnsupported => "no address of one peer, or none that this adapter takes",
            Self::AddressUnreachable => "nothing leads to this address from here now",
            Self::AddressMalformed => "this is no address",
            Self::NameNotRegistered => "no adapter has this name",
            Self::MajorNotFound => "no adapter of this name has this major version",
            Self::MinorNotFound => "no adapter of this name has this minor version",
            Self::ThreadSafetyNotFound => "no adapter of this name is thread safe as asked for",
        }
    }
}
