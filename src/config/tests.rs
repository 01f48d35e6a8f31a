use super::*;
use std::path::Path;

const AGENT: &str = "[providers.p]\nkind = \"script\"\n[agents.default]\nprovider = \"p\"\nmodel = \"m\"\n";

fn load_text(text: &str, env: &[(&str, &str)]) -> Result<Loaded, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("everturn.toml"), text).unwrap();
    let locations = Locations { working_dir: dir.path().to_owned(), ..Locations::default() };
    let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    load(&locations, &env).map_err(|error| error.to_string().replace(&format!("{}/", dir.path().display()), ""))
}

fn with_agent(text: &str) -> String {
    format!("{text}\n{AGENT}")
}

#[test]
fn the_example_of_the_surface_is_read() {
    let text = r#"
[daemon]
listen   = "127.0.0.1:7717"
data_dir = "data"
[journal]
engine     = "sled"
checkpoint = "semantic"
[limits]
max_parallel_tool_calls = 3
[limits.retry]
max_retries = 2
[providers.deepseek]
kind        = "openai"
base_url    = "https://api.deepseek.com/v1"
api_key_env = "DEEPSEEK_API_KEY"
[agents.default]
provider = "deepseek"
model    = "deepseek-chat"
system   = "You are a careful assistant."
tools    = ["time", "fetch"]
[tools.fetch]
allow      = ["127.0.0.1:9000"]
timeout_ms = 30000
max_bytes  = 1048576
[mcp.files]
command = ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/shared"]
"#;
    let loaded = load_text(text, &[]).unwrap();
    assert_eq!(loaded.config.limits.max_parallel_tool_calls, 3);
    assert_eq!(loaded.config.limits.retry.max_retries, 2);
    assert_eq!(loaded.config.limits.retry.max_delay_ms, 10_000);
    assert!(!loaded.demo);
    // What is shown can be read again and says the same.
    let shown = loaded.show().unwrap();
    let again = load_text(&shown, &[]).unwrap();
    assert_eq!(again.config.limits, loaded.config.limits);
    assert_eq!(again.config.agents, loaded.config.agents);
}

/// SURFACE 1: an error names the file, the line, the key and the nearest known key.
#[test]
fn bad_input_is_named_exactly() {
    let table: &[(&str, &[&str])] = &[
        ("[daemno]\n", &["everturn.toml, line 1", "\"daemno\"", "\"daemon\""]),
        ("[daemon]\n\nlisen = \"x\"\n", &["everturn.toml, line 3", "\"daemon.lisen\"", "\"listen\""]),
        ("[limits.retry]\nmax_retry = 1\n", &["line 2", "\"limits.retry.max_retry\"", "\"max_retries\""]),
        ("[limits]\nmax_parallel_tool_calls = \"ten\"\n", &["line 2", "limits.max_parallel_tool_calls"]),
        ("limits = 3\n", &["line 1", "\"limits\""]),
        ("[daemon]\nlisten = \"somewhere\"\n", &["line 2", "daemon.listen"]),
        ("[journal]\nengine = \"slet\"\n", &["line 2", "journal.engine", "sled"]),
        ("[providers.x]\nkind = \"openai\"\napi_key = \"sk-123\"\n", &["line 3", "providers.x.api_key", "api_key_env"]),
        ("[providers.x]\nbase_ur = \"h\"\n", &["line 2", "\"providers.x.base_ur\"", "\"base_url\""]),
        ("[tools.fetch]\nmaxbytes = 3\n", &["line 2", "\"tools.fetch.maxbytes\"", "\"max_bytes\""]),
        ("[tools.shel]\n", &["line 1", "\"tools.shel\""]),
        ("[agents.a]\nprovidr = \"p\"\n", &["line 2", "\"agents.a.providr\"", "\"provider\""]),
        ("[agents.a]\nsteering = \"yes\"\n", &["line 2", "agents.a.steering", "on"]),
        ("[mcp.a]\ncomand = []\n", &["line 2", "\"mcp.a.comand\"", "\"command\""]),
        ("[daemon\n", &["line 1", "TOML"]),
        ("[daemon]\ndrain_s = -1\n", &["line 2", "daemon.drain_s"]),
    ];
    for (text, wanted) in table {
        let error = load_text(text, &[]).unwrap_err();
        for part in *wanted {
            assert!(error.contains(part), "{text:?} gave {error:?} without {part:?}");
        }
        assert!(!error.contains('\n'), "one sentence: {error:?}");
        assert!(!error.contains("sk-123"), "a secret is repeated: {error:?}");
    }
}

#[test]
fn rules_over_several_keys_are_checked() {
    let table: &[(String, &[&str])] = &[
        (with_agent("[daemon]\nlisten = \"0.0.0.0:1\""), &["0.0.0.0:1", "token_file", "EVERTURN_TOKEN"]),
        (with_agent("[limits]\nmax_parallel_tool_calls = 0"), &["max_parallel_tool_calls"]),
        (with_agent("[limits.retry]\njitter_ratio = 2.0"), &["jitter_ratio"]),
        ("[providers.p]\nkind = \"script\"\n".to_owned(), &["agents.default"]),
        (
            "[agents.a]\nprovider = \"q\"\nmodel = \"m\"\n[providers.p]\nkind = \"script\"\n".to_owned(),
            &["\"q\"", "\"p\""],
        ),
        (format!("{AGENT}tools = [\"tine\"]"), &["\"tine\"", "time"]),
        (format!("{AGENT}tools = [\"mcp:files\"]"), &["mcp:files", "not in this build yet"]),
        (format!("{AGENT}tools = [\"time\", \"time\"]"), &["twice"]),
        (format!("{AGENT}system = \"a\"\nsystem_file = \"b\""), &["system_file"]),
        (format!("{AGENT}temperature = nan"), &["temperature"]),
    ];
    for (text, wanted) in table {
        let error = load_text(text, &[]).unwrap_err();
        for part in *wanted {
            assert!(error.contains(part), "{text:?} gave {error:?} without {part:?}");
        }
    }
    assert!(load_text(&with_agent("[daemon]\nlisten = \"0.0.0.0:1\""), &[("EVERTURN_TOKEN", "t")]).is_ok());
    assert!(load_text(&with_agent("[daemon]\nlisten = \"[::1]:1\""), &[]).is_ok());
}

#[test]
fn the_environment_overrides_every_key() {
    let env = [
        ("EVERTURN__LIMITS__RETRY__MAX_RETRIES", "7"),
        ("EVERTURN__DAEMON__LISTEN", "127.0.0.1:0"),
        ("EVERTURN__AGENTS__DEFAULT__TOOLS", "[\"time\"]"),
        ("EVERTURN__AGENTS__DEFAULT__MODEL", "other"),
        ("EVERTURN_TOKEN", "not an override"),
    ];
    let config = load_text(AGENT, &env).unwrap().config;
    assert_eq!(config.limits.retry.max_retries, 7);
    assert_eq!(config.daemon.listen.port(), 0);
    assert_eq!(config.agents["default"].tools, ["time"]);
    assert_eq!(config.agents["default"].model, "other");
    let table: &[(&str, &str, &[&str])] = &[
        ("EVERTURN__LIMITS__RETRY__MAX_RETRY", "1", &["EVERTURN__LIMITS__RETRY__MAX_RETRY", "max_retries"]),
        ("EVERTURN__LIMITS__INBOX_CAPACITY", "many", &["EVERTURN__LIMITS__INBOX_CAPACITY", "wrong value"]),
        ("EVERTURN__PROVIDERS__P__API_KEY", "sk-123", &["api_key_env"]),
        ("EVERTURN__DAEMON__LISTEN__PORT", "1", &["daemon.listen"]),
        ("EVERTURN__", "1", &["EVERTURN__"]),
    ];
    for (name, value, wanted) in table {
        let error = load_text(AGENT, &[(name, value)]).unwrap_err();
        for part in *wanted {
            assert!(error.contains(part), "{name} gave {error:?} without {part:?}");
        }
        assert!(!error.contains("sk-123"), "a secret is repeated: {error:?}");
    }
}

#[test]
fn secrets_are_masked_when_shown() {
    let text = with_agent(
        "[providers.q]\nkind = \"openai\"\nbase_url = \"https://me:hush@host/v1?key=hush\"\n\
         [mcp.m]\nurl = \"https://u:hush@h/mcp\"\n[mcp.m.env]\nTOKEN = \"hush\"\n",
    );
    let shown = load_text(&text, &[]).unwrap().show().unwrap();
    assert!(!shown.contains("hush"), "{shown}");
    assert!(shown.contains("***"), "{shown}");
}

#[test]
fn without_configuration_the_demonstration_stands_in() {
    let dir = tempfile::tempdir().unwrap();
    let config_home = dir.path().join("none");
    let locations = Locations { working_dir: config_home, ..Locations::default() };
    let loaded = load(&locations, &BTreeMap::new()).unwrap();
    if loaded.file.is_none() {
        assert!(loaded.demo);
        assert_eq!(loaded.config.agents["default"].tools, ["time"]);
    }
}

#[test]
fn places_have_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let named = dir.path().join("named.toml");
    std::fs::write(&named, with_agent("[daemon]\ndata_dir = \"of-file\"")).unwrap();
    let mut locations =
        Locations { config: Some(named.clone()), working_dir: dir.path().to_owned(), ..Locations::default() };
    let mut env = BTreeMap::from([("EVERTURN_CONFIG".to_owned(), "missing.toml".to_owned())]);
    let loaded = load(&locations, &env).unwrap();
    assert_eq!(loaded.file.as_deref(), Some(named.as_path()));
    assert_eq!(data_dir(&locations, &env, &loaded).unwrap(), dir.path().join("of-file"));
    env.insert("EVERTURN_DATA_DIR".to_owned(), "of-env".to_owned());
    assert_eq!(data_dir(&locations, &env, &loaded).unwrap(), dir.path().join("of-env"));
    locations.data_dir = Some(Path::new("of-flag").to_owned());
    assert_eq!(data_dir(&locations, &env, &loaded).unwrap(), dir.path().join("of-flag"));
    locations.config = None;
    assert!(load(&locations, &env).unwrap_err().to_string().contains("EVERTURN_CONFIG"));
}
