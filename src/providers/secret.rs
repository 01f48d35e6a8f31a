//! Keys of providers: where they are, reading them, and keeping them out of everything that is written.

use super::limits::KEY_FILE_MAX_BYTES;
use everturn_storage::{
    RawJson,
    message::{Failure, code},
};
use reqwest::header::HeaderValue;
use std::{path::PathBuf, sync::Arc};
use tokio::io::AsyncReadExt as _;

/// What stands in the place of a key.
const MASK: &str = "***";

/// Shortest text that is taken for a key when failures are cleaned; a shorter one would mangle ordinary words.
const SCRUB_MIN_BYTES: usize = 4;

/// A key. It shows itself to nobody.
#[derive(Clone)]
pub(super) struct Secret(Arc<str>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(MASK)
    }
}

impl Secret {
    /// A header with the key behind `prefix`, marked so that no log prints it.
    pub(super) fn header(&self, prefix: &str) -> Result<HeaderValue, Failure> {
        let mut value = HeaderValue::from_str(&format!("{prefix}{}", self.0)).map_err(|_| {
            Failure::new(
                code::INVALID_CREDENTIAL,
                "the key holds characters that no HTTP header can carry; write the key alone, on one line",
            )
        })?;
        value.set_sensitive(true);
        Ok(value)
    }

    fn scrub(&self, text: &mut String) {
        if self.0.len() >= SCRUB_MIN_BYTES && text.contains(&*self.0) {
            *text = text.replace(&*self.0, MASK);
        }
    }
}

/// Takes the key out of everything that `failure` says.
pub(super) fn scrub(secret: Option<&Secret>, failure: &mut Failure) {
    let Some(secret) = secret else { return };
    secret.scrub(&mut failure.code);
    secret.scrub(&mut failure.message);
    if let Some(id) = &mut failure.request_id {
        secret.scrub(id);
    }
    if let Some(detail) = &failure.detail {
        let mut text = detail.as_str().to_owned();
        secret.scrub(&mut text);
        failure.detail = RawJson::parse(&text).ok();
    }
}

/// Where a key is. It is read anew for each request, so that a new key needs no restart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SecretSource {
    /// The provider wants none.
    None,
    /// An environment variable.
    Env(String),
    /// A file.
    File(PathBuf),
}

impl SecretSource {
    /// Reads the key.
    pub(super) async fn read(&self) -> Result<Option<Secret>, Failure> {
        let text = match self {
            Self::None => return Ok(None),
            Self::Env(name) => match std::env::var(name) {
                Ok(text) => text,
                Err(std::env::VarError::NotPresent) => {
                    return Err(missing(format!("the environment variable {name} is not set; set it to the key")));
                }
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(invalid(format!("the environment variable {name} holds no text; set it to the key")));
                }
            },
            Self::File(path) => read_file(path).await?,
        };
        let key = text.trim();
        if key.is_empty() {
            let place = match self {
                Self::Env(name) => format!("the environment variable {name}"),
                Self::File(path) => format!("the key file {}", path.display()),
                Self::None => String::new(),
            };
            return Err(missing(format!("{place} is empty; put the key there")));
        }
        let secret = Secret(key.into());
        // Whether it can be sent is known before anything is.
        secret.header("")?;
        Ok(Some(secret))
    }
}

async fn read_file(path: &PathBuf) -> Result<String, Failure> {
    let place = path.display();
    let wrong = |error| missing(format!("the key file {place} cannot be read ({error}); correct api_key_file"));
    let file = tokio::fs::File::open(path).await.map_err(wrong)?;
    let mut bytes = Vec::new();
    file.take(KEY_FILE_MAX_BYTES + 1).read_to_end(&mut bytes).await.map_err(wrong)?;
    if bytes.len() as u64 > KEY_FILE_MAX_BYTES {
        return Err(invalid(format!("the key file {place} is too long for a key; correct api_key_file")));
    }
    String::from_utf8(bytes).map_err(|_| invalid(format!("the key file {place} holds no text; correct api_key_file")))
}

fn missing(message: String) -> Failure {
    Failure::new(code::MISSING_CREDENTIAL, message)
}

fn invalid(message: String) -> Failure {
    Failure::new(code::INVALID_CREDENTIAL, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn of_file(bytes: &[u8]) -> Result<Option<Secret>, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, bytes).unwrap();
        SecretSource::File(path).read().await
    }

    /// 5.5: what is missing and what is wrong have codes of their own, and no error repeats a key.
    #[tokio::test]
    async fn keys_are_read_and_judged() {
        assert_eq!(&*of_file(b" sk-1234\r\n").await.unwrap().unwrap().0, "sk-1234");
        assert!(SecretSource::None.read().await.unwrap().is_none());
        for (bytes, wanted) in [
            (b"".as_slice(), code::MISSING_CREDENTIAL),
            (b" \n", code::MISSING_CREDENTIAL),
            (b"sk-12\n34", code::INVALID_CREDENTIAL),
            (b"\xff\xfe", code::INVALID_CREDENTIAL),
            (&[b'x'; 70_000], code::INVALID_CREDENTIAL),
        ] {
            let failure = of_file(bytes).await.unwrap_err();
            assert_eq!(failure.code, wanted);
            assert!(!failure.message.contains("sk-12"), "{}", failure.message);
        }
        let nowhere = SecretSource::File("/nowhere/key".into()).read().await.unwrap_err();
        assert_eq!(nowhere.code, code::MISSING_CREDENTIAL);
        let unset = SecretSource::Env("EVERTURN_TEST_UNSET_KEY".into()).read().await.unwrap_err();
        assert_eq!(unset.code, code::MISSING_CREDENTIAL);
        assert!(unset.message.contains("EVERTURN_TEST_UNSET_KEY"), "{}", unset.message);
    }

    /// Secrets are stripped from failures (5.5) and never shown.
    #[test]
    fn keys_are_stripped() {
        let secret = Secret("sk-1234".into());
        let mut failure = Failure {
            request_id: Some("sk-1234".into()),
            detail: RawJson::parse(r#"{"type":"sk-1234"}"#).ok(),
            ..Failure::new("AUTH", "the key sk-1234 is wrong, sk-1234!")
        };
        scrub(Some(&secret), &mut failure);
        assert_eq!(failure.message, "the key *** is wrong, ***!");
        assert!(!format!("{failure:?} {secret:?} {:?}", secret.header("Bearer ")).contains("sk-1234"));
    }
}
