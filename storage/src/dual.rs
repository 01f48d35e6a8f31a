//! Enums that are tagged objects in JSON and compact variants on disk.
//!
//! The codec on disk cannot read serde's tagged forms, and scripts cannot read its numbers. One definition
//! serves both: the form is chosen by whether the format is for people.

/// Defines an enum with both forms. `tag` names the field that holds the variant in JSON.
macro_rules! dual_enum {
    (
        $(#[$doc:meta])*
        pub enum $name:ident as $text:literal, tag $tag:literal, case $case:literal {
            $($(#[$vdoc:meta])* $variant:ident $({ $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? })?),* $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub enum $name {
            $($(#[$vdoc])* $variant $({ $($(#[$fdoc])* $field: $ty),* })?),*
        }

        const _: () = {
            #[derive(serde::Serialize, serde::Deserialize)]
            #[serde(remote = $text)]
            enum Compact {
                $($variant $({ $($field: $ty),* })?),*
            }

            #[derive(serde::Serialize, serde::Deserialize)]
            #[serde(remote = $text, tag = $tag, rename_all = $case, deny_unknown_fields)]
            enum Readable {
                $($variant $({ $($field: $ty),* })?),*
            }

            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    if serializer.is_human_readable() {
                        Readable::serialize(self, serializer)
                    } else {
                        Compact::serialize(self, serializer)
                    }
                }
            }

            impl<'de> serde::Deserialize<'de> for $name {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    if deserializer.is_human_readable() {
                        Readable::deserialize(deserializer)
                    } else {
                        Compact::deserialize(deserializer)
                    }
                }
            }
        };
    };
}

pub(crate) use dual_enum;

/// JSON that nobody here looks into: kept as the text that it was given as, embedded as it is when exported.
///
/// The text is valid JSON; [`RawJson::parse`] is the only way in from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawJson(std::sync::Arc<str>);

impl RawJson {
    /// Takes `text` if it is JSON.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<serde::de::IgnoredAny>(text)?;
        Ok(Self(text.into()))
    }

    /// The compact text of `value`.
    pub fn from_value(value: &serde_json::Value) -> Self {
        Self(value.to_string().into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text as a value; `null` should it ever be no JSON.
    pub fn to_value(&self) -> serde_json::Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }
}

impl serde::Serialize for RawJson {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            let raw: &serde_json::value::RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
            raw.serialize(serializer)
        } else {
            serializer.serialize_str(&self.0)
        }
    }
}

impl<'de> serde::Deserialize<'de> for RawJson {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            // A value is parsed first: buffered content (tagged enums) cannot carry raw text.
            let value = serde_json::Value::deserialize(deserializer)?;
            Ok(Self::from_value(&value))
        } else {
            let text = String::deserialize(deserializer)?;
            Self::parse(&text).map_err(serde::de::Error::custom)
        }
    }
}
