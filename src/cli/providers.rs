//! `everturn providers check`: asks a provider whether its configuration works.

use super::{
    Context, ProvidersCommand,
    error::{CliError, exit},
    out,
};
use crate::providers::{CheckReport, CheckTarget, ToolSupport, check};
use everturn_actors::ports::Signal;
use std::{path::Path, time::Duration};

pub(super) async fn providers(context: &Context, what: ProvidersCommand) -> Result<u8, CliError> {
    let ProvidersCommand::Check { name, model, timeout_s } = what;
    let loaded = context.load()?;
    let Some(config) = loaded.config.providers.get(&name) else {
        let known: Vec<&str> = loaded.config.providers.keys().map(String::as_str).collect();
        return Err(CliError::bad_usage(format!(
            "no provider {name:?} is configured; the configuration has: {}",
            known.join(", ")
        )));
    };
    let of_agent = || loaded.config.agents.values().find(|agent| agent.provider == name).map(|agent| &agent.model);
    let Some(model) = model.as_ref().or_else(of_agent) else {
        return Err(CliError::bad_usage(format!("no agent uses the provider {name:?}; say which --model to ask")));
    };
    let resolve = |path: &Path| loaded.resolve(path);
    let target = CheckTarget { provider: &name, config, resolve: &resolve, model };
    let report = check(target, Duration::from_secs(timeout_s), &Signal::new())
        .await
        .map_err(|error| CliError::new(exit::USAGE, "CONFIG", format!("providers.{name}: {error}")))?;
    if context.json {
        out::line(&serde_json::to_string(&report).map_err(|error| CliError::internal(error.to_string()))?);
    } else {
        out::text(&table(&report));
    }
    match report.failure {
        None => Ok(exit::COMPLETED),
        Some(failure) => {
            let advice = report.advice.unwrap_or_default();
            let why = format!("the provider {name:?} does not work as configured: {}; {advice}", failure.message);
            Err(CliError::new(exit::ERROR, failure.code, why))
        }
    }
}

fn table(report: &CheckReport) -> String {
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let answers = match report.first_chunk_ms {
        Some(first_ms) => format!("yes, {first_ms} ms to the first chunk: {:?}", report.text),
        None => "no".to_owned(),
    };
    let usage = match &report.usage {
        Some(usage) => {
            let input = usage.input + usage.cache_read + usage.cache_write;
            format!("yes: {input} in, {} out", usage.output + usage.reasoning)
        }
        None => "no".to_owned(),
    };
    let tools = match report.tools {
        ToolSupport::Untried => "not tried",
        ToolSupport::NotCalled => "taken, but the model made no call this time",
        ToolSupport::Works => "yes, call and result",
        ToolSupport::Refused => "refused",
    };
    let quirks = if report.quirks.is_empty() { "none found".to_owned() } else { report.quirks.join(", ") };
    let rows = [
        ("model", report.model.clone()),
        ("answers", answers),
        ("token counts", usage),
        ("reasoning shown", yes_no(report.reasoning)),
        ("tools", tools.to_owned()),
        ("quirks", quirks),
        ("took", format!("{} ms", report.total_ms)),
    ];
    rows.iter().map(|(name, value)| format!("{name:<16} {value}\n")).collect()
}
