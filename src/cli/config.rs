//! `everturn config`.

use super::{ConfigCommand, Context, error::CliError, out};
use crate::config::build_profiles;

pub(super) fn config(context: &Context, what: &ConfigCommand) -> Result<u8, CliError> {
    let loaded = context.load()?;
    match what {
        ConfigCommand::Check => {
            build_profiles(&loaded)?;
            context.token(&loaded)?;
            context.data_dir(&loaded)?;
            out::line(&match &loaded.file {
                Some(file) => format!("{} holds", file.display()),
                None => "no configuration file; the defaults hold".to_owned(),
            });
        }
        ConfigCommand::Show => out::text(&loaded.show()?),
    }
    Ok(0)
}
