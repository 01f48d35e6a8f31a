//! Which addresses `fetch` may ask: the public internet, and what the configuration names.
//!
//! A name is checked by the addresses that it resolves to, at the moment of the connection and by the resolver of
//! that connection, so that an answer cannot change in between (DNS rebinding).

use ipnet::{Ipv4Net, Ipv6Net};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use url::{Host, Url};

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), bits)
}

/// IPv4 addresses that are nobody's on the public internet, or that clouds answer themselves.
const CLOSED_V4: &[Ipv4Net] = &[
    v4(0, 0, 0, 0, 8),        // this network, unspecified
    v4(10, 0, 0, 0, 8),       // private
    v4(100, 64, 0, 0, 10),    // shared by providers (CGNAT); one cloud's metadata
    v4(127, 0, 0, 0, 8),      // loopback
    v4(168, 63, 129, 16, 32), // one cloud's agent endpoint
    v4(169, 254, 0, 0, 16),   // link-local, metadata
    v4(172, 16, 0, 0, 12),    // private
    v4(192, 0, 0, 0, 24),     // protocol assignments; one cloud's metadata
    v4(192, 0, 2, 0, 24),     // documentation
    v4(192, 88, 99, 0, 24),   // 6to4 relays
    v4(192, 168, 0, 0, 16),   // private
    v4(198, 18, 0, 0, 15),    // benchmarks
    v4(198, 51, 100, 0, 24),  // documentation
    v4(203, 0, 113, 0, 24),   // documentation
    v4(224, 0, 0, 0, 4),      // multicast
    v4(240, 0, 0, 0, 4),      // reserved, broadcast
];

/// Only this part of IPv6 is global unicast. It leaves out loopback, unspecified, link-local, unique local, multicast,
/// IPv4-mapped and NAT64 addresses.
const OPEN_V6: Ipv6Net = v6(0x2000, 0, 3);

/// Parts of [`OPEN_V6`] that lead elsewhere.
const CLOSED_V6: &[Ipv6Net] = &[
    v6(0x2001, 0, 23),     // protocol assignments, Teredo
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x2002, 0, 16),     // 6to4: wraps any IPv4 address
    v6(0x3fff, 0, 20),     // documentation
];

/// Whether an address is on the public internet.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !CLOSED_V4.iter().any(|net| net.contains(&address)),
        IpAddr::V6(address) => OPEN_V6.contains(&address) && !CLOSED_V6.iter().any(|net| net.contains(&address)),
    }
}

/// An address that is not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("only http and https addresses can be fetched, not {0}")]
    Scheme(String),
    #[error("the address holds a user name or a password; leave them out")]
    Credentials,
    #[error("the address names no host")]
    NoHost,
    #[error("{0} is not on the public internet; only the operator can allow it, as host:port in [tools.fetch] allow")]
    Private(String),
}

/// Hosts and ports that the configuration opens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Allowed(Vec<(Host, u16)>);

impl Allowed {
    /// Reads `host:port` entries; an error says which one cannot be read.
    pub(super) fn parse(entries: &[String]) -> Result<Self, String> {
        let parse = |entry: &String| {
            let (host, port) = entry.rsplit_once(':')?;
            // A host without a port whose last part looks like one would silently open nothing.
            let port = port.parse().ok().filter(|port| *port != 0)?;
            Some((Host::parse(host).ok()?, port))
        };
        entries
            .iter()
            .map(|entry| {
                parse(entry).ok_or_else(|| {
                    format!("[tools.fetch] allow: {entry:?} is no host:port; write for example \"127.0.0.1:9000\"")
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Looks at an address before anything is sent. Says whether the configuration opens it: if so, what it resolves
    /// to does not matter; if not, the connection must go through [`PublicOnly`].
    pub(super) fn check(&self, url: &Url) -> Result<bool, Refused> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refused::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::Credentials);
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(Refused::NoHost);
        };
        let host = host.to_owned();
        if self.0.iter().any(|(open, at)| (open, *at) == (&host, port)) {
            return Ok(true);
        }
        let literal = match host {
            Host::Ipv4(address) => Some(IpAddr::V4(address)),
            Host::Ipv6(address) => Some(IpAddr::V6(address)),
            Host::Domain(_) => None,
        };
        match literal {
            Some(address) if !is_public(address) => Err(Refused::Private(format!("{address}:{port}"))),
            Some(_) | None => Ok(false),
        }
    }
}

/// A resolver that knows public addresses only.
#[derive(Debug)]
pub(super) struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let public: Vec<SocketAddr> = found.into_iter().filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err(Refused::Private(name.as_str().to_owned()).into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of address that must not be asked, and neighbours that may.
    #[test]
    fn only_the_public_internet_is_public() {
        let closed = [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "ff02::1",
            "::7f00:1",
            "100::1",
            "3fff::1",
            "5f00::1",
        ];
        for address in closed {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        let open = [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.255.255",
            "100.128.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "192.167.0.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "168.63.129.17",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2a00::1",
        ];
        for address in open {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    fn check(allow: &[&str], url: &str) -> Result<bool, Refused> {
        let allow: Vec<String> = allow.iter().map(|&entry| entry.to_owned()).collect();
        Allowed::parse(&allow).unwrap().check(&Url::parse(url).unwrap())
    }

    /// Every way to write a loopback address is the same address.
    #[test]
    fn spellings_do_not_matter() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://[::1]/",
            "http://[::ffff:7f00:1]/",
            "http://0/",
            "http://１２７.0.0.1/",
        ] {
            assert!(matches!(check(&[], url), Err(Refused::Private(_))), "{url}");
        }
        assert_eq!(check(&[], "http://example.com/"), Ok(false), "a name is for the resolver to judge");
    }

    /// `allow` opens exactly one port of one host, however it is spelt.
    #[test]
    fn allow_is_host_and_port() {
        let allow = ["127.0.0.1:9000", "LocalHost:80", "[::1]:443"];
        for url in ["http://127.0.0.1:9000/x", "http://127.1:9000/", "http://localhost/", "https://[::1]/"] {
            assert_eq!(check(&allow, url), Ok(true), "{url}");
        }
        assert!(check(&allow, "http://127.0.0.1:9001/").is_err());
        assert!(check(&allow, "http://[::1]/").is_err());
        assert_eq!(check(&allow, "http://localhost:81/"), Ok(false));
        for entry in ["127.0.0.1", "host:", ":80", "host:0", "host:99999", "http://host:80", "::1"] {
            let error = Allowed::parse(&[entry.to_owned()]).unwrap_err();
            assert!(error.contains(entry) && error.contains("host:port"), "{error}");
        }
    }

    /// What is no plain web address is refused before anything happens.
    #[test]
    fn other_schemes_and_credentials_are_refused() {
        assert_eq!(check(&[], "file:///etc/passwd"), Err(Refused::Scheme("file".into())));
        assert_eq!(check(&[], "ftp://example.com/"), Err(Refused::Scheme("ftp".into())));
        assert_eq!(check(&["h:80"], "http://user@h/"), Err(Refused::Credentials));
        assert_eq!(check(&[], "http://:secret@example.com/"), Err(Refused::Credentials));
    }

    /// A name that resolves to a private address is refused by the resolver of the connection itself.
    #[tokio::test]
    async fn the_resolver_knows_public_addresses_only() {
        let error = PublicOnly.resolve("localhost".parse().unwrap()).await.err().unwrap();
        assert_eq!(error.downcast_ref(), Some(&Refused::Private("localhost".into())));
    }
}
