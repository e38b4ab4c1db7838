//! TLS to the REST interface: whose certificate is trusted.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
};
use sha2::{Digest, Sha256};

use super::Trouble;

/// SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate.as_ref()).into())
    }

    /// Reads it in the form that `lunet serve` prints, or as openssl does; colons may be left out.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix("SHA-256 ").unwrap_or(text).trim();
        let digits: Vec<u8> = text
            .chars()
            .filter(|c| *c != ':')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> =
            digits.chunks(2).map(|pair| pair.iter().fold(0, |all, one| all << 4 | one)).collect();
        (digits.len() == 64).then_some(())?;
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: Vec<String> = self.0.iter().map(|byte| format!("{byte:02X}")).collect();
        f.write_str(&bytes.join(":"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whose certificate is believed.
#[derive(Clone, Debug)]
pub enum Trust {
    /// What the system trusts.
    System,
    /// The certificates of a file in PEM, and what they have signed.
    File(PathBuf),
    /// The certificate with this hash, whatever name it has and whoever has signed it.
    Pinned(Fingerprint),
}

/// A certificate that is not believed, as it comes out of a handshake.
#[derive(Debug)]
pub(super) struct Refused {
    /// Of the certificate.
    pub(super) found: Fingerprint,
    /// The one that was expected.
    pub(super) pinned: Option<Fingerprint>,
    why: Option<rustls::Error>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                f.write_str("nobody that is trusted has signed it")
            }
            Some(rustls::Error::InvalidCertificate(why)) => write!(f, "{why}"),
            Some(why) => write!(f, "{why}"),
            None => f.write_str("it is another one"),
        }
    }
}

impl std::error::Error for Refused {}

/// Judges the certificate of a server.
#[derive(Debug)]
struct Judge {
    by: By,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum By {
    Signature(Arc<WebPkiServerVerifier>),
    Hash(Fingerprint),
}

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Fingerprint::of(end_entity);
        let (pinned, why) = match &self.by {
            By::Hash(pinned) if *pinned == found => return Ok(ServerCertVerified::assertion()),
            By::Hash(pinned) => (Some(*pinned), None),
            By::Signature(judge) => {
                let judged = judge.verify_server_cert(
                    end_entity,
                    intermediates,
                    server_name,
                    ocsp_response,
                    now,
                );
                match judged {
                    Ok(verified) => return Ok(verified),
                    Err(why) => (None, Some(why)),
                }
            }
        };
        let refused = OtherError(Arc::new(Refused { found, pinned, why }));
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(refused)))
    }

    // Whoever has the certificate need not have its key: that is shown here.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// How TLS is spoken.
///
/// # Errors
/// The certificates that are trusted cannot be read.
pub(super) fn config(trust: &Trust) -> Result<Arc<ClientConfig>, Trouble> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let by = match trust {
        Trust::Pinned(fingerprint) => By::Hash(*fingerprint),
        Trust::File(path) => {
            let unusable = |error: &dyn fmt::Display| Trouble::Authorities {
                path: path.clone(),
                error: error.to_string(),
            };
            let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
            let all: Vec<_> = read.map_err(|error| unusable(&error))?;
            let mut roots = RootCertStore::empty();
            for one in all {
                roots.add(one).map_err(|error| unusable(&error))?;
            }
            if roots.is_empty() {
                return Err(unusable(&"it has no certificate"));
            }
            By::Signature(signed(roots, &provider)?)
        }
        Trust::System => {
            let mut roots = RootCertStore::empty();
            // One that cannot be read is of no use, and no reason to do without the others.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(Trouble::NoAuthorities);
            }
            By::Signature(signed(roots, &provider)?)
        }
    };
    let judge = Arc::new(Judge { by, provider: Arc::clone(&provider) });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(judge)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn signed(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, Trouble> {
    let builder =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    builder.build().map_err(|error| Trouble::Tls(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_printed() {
        let text = "AB:".repeat(31) + "0F";
        let found = Fingerprint::parse(&text).unwrap();
        assert_eq!(found.to_string(), text);
        for same in [text.to_lowercase(), text.replace(':', ""), format!("SHA-256 {text}\n")] {
            assert_eq!(Fingerprint::parse(&same), Some(found), "{same}");
        }
        for wrong in ["", "AB", &text[3..], &format!("{text}:00"), &text.replace('F', "G")] {
            assert_eq!(Fingerprint::parse(wrong), None, "{wrong}");
        }
    }
}
