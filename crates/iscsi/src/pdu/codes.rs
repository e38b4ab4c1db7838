//! The code values of PDU fields.

/// Declares an enumeration of wire codes with conversion from its number.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $repr:ty { $($(#[$vdoc:meta])* $variant:ident = $value:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $value,)*
        }

        impl $name {
            /// The code with this number, if RFC 7143 defines one.
            #[must_use]
            pub const fn from_code(code: $repr) -> Option<Self> {
                match code {
                    $(code if code == $value => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> $repr {
                self as $repr
            }
        }
    };
}

codes! {
    /// Opcodes (RFC 7143 section 11.2.1.2).
    Opcode: u8 {
        /// NOP-Out.
        NopOut = 0x00,
        /// SCSI Command.
        ScsiCommand = 0x01,
        /// Task Management Function Request.
        TmfRequest = 0x02,
        /// Login Request.
        LoginRequest = 0x03,
        /// Text Request.
        TextRequest = 0x04,
        /// SCSI Data-Out.
        DataOut = 0x05,
        /// Logout Request.
        LogoutRequest = 0x06,
        /// SNACK Request.
        SnackRequest = 0x10,
        /// NOP-In.
        NopIn = 0x20,
        /// SCSI Response.
        ScsiResponse = 0x21,
        /// Task Management Function Response.
        TmfResponse = 0x22,
        /// Login Response.
        LoginResponse = 0x23,
        /// Text Response.
        TextResponse = 0x24,
        /// SCSI Data-In.
        DataIn = 0x25,
        /// Logout Response.
        LogoutResponse = 0x26,
        /// Ready To Transfer.
        R2t = 0x31,
        /// Asynchronous Message.
        AsyncMessage = 0x32,
        /// Reject.
        Reject = 0x3f,
    }
}

impl Opcode {
    /// The opcode in byte 0 of a header, whatever its Immediate bit says.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Self::from_code(byte & super::OPCODE_MASK)
    }
}

codes! {
    /// Login stages (RFC 7143 section 11.12.3).
    Stage: u8 {
        /// SecurityNegotiation.
        Security = 0,
        /// LoginOperationalNegotiation.
        Operational = 1,
        /// FullFeaturePhase.
        FullFeature = 3,
    }
}

impl Stage {
    /// CSG of a login PDU.
    #[must_use]
    pub const fn current(flags: u8) -> Option<Self> {
        Self::from_code(flags >> 2 & 3)
    }

    /// NSG of a login PDU; it only means something with the Transit bit.
    #[must_use]
    pub const fn next(flags: u8) -> Option<Self> {
        Self::from_code(flags & 3)
    }
}

codes! {
    /// Status-Class and Status-Detail of a Login Response (RFC 7143 section 11.13.5).
    LoginStatus: u16 {
        /// The login proceeds.
        Success = 0x0000,
        /// The target moved temporarily; TargetAddress says where.
        MovedTemporarily = 0x0101,
        /// The target moved for good; TargetAddress says where.
        MovedPermanently = 0x0102,
        /// The initiator broke the protocol or offers nothing acceptable.
        InitiatorError = 0x0200,
        /// The initiator could not be authenticated.
        AuthenticationFailure = 0x0201,
        /// The initiator may not use this target.
        AuthorizationFailure = 0x0202,
        /// There is no such target.
        NotFound = 0x0203,
        /// The target was removed.
        TargetRemoved = 0x0204,
        /// The requested version range is not supported.
        UnsupportedVersion = 0x0205,
        /// Too many connections on this session identifier.
        TooManyConnections = 0x0206,
        /// A parameter is missing, such as InitiatorName.
        MissingParameter = 0x0207,
        /// The session does not take a connection on this portal.
        CannotIncludeInSession = 0x0208,
        /// The session type is not supported.
        SessionTypeNotSupported = 0x0209,
        /// There is no session with this TSIH.
        SessionDoesNotExist = 0x020a,
        /// The request is not valid during login.
        InvalidDuringLogin = 0x020b,
        /// The target failed.
        TargetError = 0x0300,
        /// The service is not available now.
        ServiceUnavailable = 0x0301,
        /// The target is out of resources.
        OutOfResources = 0x0302,
    }
}

codes! {
    /// Reasons of a Reject (RFC 7143 section 11.17.1).
    RejectReason: u8 {
        /// A data digest was wrong; the PDU may be sent again.
        DataDigestError = 0x02,
        /// A SNACK was rejected.
        SnackReject = 0x03,
        /// Protocol error.
        ProtocolError = 0x04,
        /// The command is not supported.
        CommandNotSupported = 0x05,
        /// Too many immediate commands.
        ImmediateCommandReject = 0x06,
        /// A task is in progress.
        TaskInProgress = 0x07,
        /// Invalid data acknowledgement.
        InvalidDataAck = 0x08,
        /// A PDU field is not valid.
        InvalidPduField = 0x09,
        /// The target cannot make a Target Transfer Tag now.
        LongOperationReject = 0x0a,
        /// The negotiation was reset; superseded since RFC 7143.
        NegotiationReset = 0x0b,
        /// The initiator should log out.
        WaitingForLogout = 0x0c,
    }
}

codes! {
    /// Task management functions (RFC 7143 section 11.5.1).
    TmfFunction: u8 {
        /// ABORT TASK.
        AbortTask = 1,
        /// ABORT TASK SET.
        AbortTaskSet = 2,
        /// CLEAR ACA.
        ClearAca = 3,
        /// CLEAR TASK SET.
        ClearTaskSet = 4,
        /// LOGICAL UNIT RESET.
        LogicalUnitReset = 5,
        /// TARGET WARM RESET.
        TargetWarmReset = 6,
        /// TARGET COLD RESET.
        TargetColdReset = 7,
        /// TASK REASSIGN.
        TaskReassign = 8,
    }
}

codes! {
    /// Responses to task management functions (RFC 7143 section 11.6.1).
    TmfResponse: u8 {
        /// Function complete.
        Complete = 0,
        /// Task does not exist.
        TaskDoesNotExist = 1,
        /// LUN does not exist.
        LunDoesNotExist = 2,
        /// Task still allegiant.
        TaskStillAllegiant = 3,
        /// Task allegiance reassignment not supported.
        ReassignNotSupported = 4,
        /// Task management function not supported.
        NotSupported = 5,
        /// Function authorization failed.
        AuthorizationFailed = 6,
        /// Function rejected.
        Rejected = 255,
    }
}

codes! {
    /// Reasons of a Logout Request (RFC 7143 section 11.14.1).
    LogoutReason: u8 {
        /// Close the session.
        CloseSession = 0,
        /// Close the connection.
        CloseConnection = 1,
        /// Remove the connection for recovery.
        RemoveForRecovery = 2,
    }
}

codes! {
    /// Responses to a Logout Request (RFC 7143 section 11.15.1).
    LogoutResponse: u8 {
        /// Connection or session closed.
        Closed = 0,
        /// The connection identifier was not found.
        CidNotFound = 1,
        /// Connection recovery is not supported.
        RecoveryNotSupported = 2,
        /// The clean-up failed.
        CleanupFailed = 3,
    }
}

codes! {
    /// Events of an Asynchronous Message (RFC 7143 section 11.9.1).
    AsyncEvent: u8 {
        /// A SCSI event, with sense data.
        Scsi = 0,
        /// The target asks for a logout within Parameter3 seconds.
        LogoutRequest = 1,
        /// The target will drop the connection Parameter1.
        ConnectionDrop = 2,
        /// The target will drop all connections of the session.
        SessionDrop = 3,
        /// The target asks for a parameter negotiation within Parameter3 seconds.
        Negotiate = 4,
        /// All active tasks of the logical unit are being terminated.
        TaskTermination = 5,
        /// Vendor-specific.
        Vendor = 255,
    }
}

codes! {
    /// Task attributes (RFC 7143 section 11.3.1).
    TaskAttribute: u8 {
        /// Untagged.
        Untagged = 0,
        /// Simple.
        Simple = 1,
        /// Ordered.
        Ordered = 2,
        /// Head of queue.
        HeadOfQueue = 3,
        /// ACA.
        Aca = 4,
    }
}
