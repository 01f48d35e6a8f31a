//! What the targets share.

use everturn::{
    providers::{Preview, ProviderConfig},
    storage::{
        assemble::Assembler,
        chunk::Chunk,
        event::{Digest, HeaderReason, RequestConfig, RequestHeader, SystemUpdate},
        ids::CallId,
        log::request::ModelRequest,
    },
};
use std::{path::Path, sync::Arc};

/// The mapping of a provider of this kind.
pub fn preview(kind: &str) -> Preview {
    let base_url = Some("http://127.0.0.1:1/v1".to_owned());
    let config = ProviderConfig { kind: kind.to_owned(), base_url, ..ProviderConfig::default() };
    Preview::new("fuzz", &config, &Path::to_path_buf).expect("the configuration holds")
}

/// A request without a history: of it the mappings read the model and the tools.
pub fn request() -> ModelRequest {
    let config = RequestConfig { provider: "fuzz".into(), model: "m".into(), ..RequestConfig::default() };
    ModelRequest {
        header: Arc::new(RequestHeader {
            config,
            defaulted: Vec::new(),
            tools: Vec::new(),
            system_update: SystemUpdate::Replace,
            reason: HeaderReason::Initial,
        }),
        messages: Vec::new().into(),
        digest: Digest([0; 32]),
    }
}

/// What must hold of every answer: at most one end, and it is the last chunk; chunks that the assembler can read; no
/// more bytes than came in, but for what JSON writes in a short way.
pub fn judge(answer: &[u8], chunks: &[Chunk]) {
    let ends = chunks.iter().filter(|chunk| matches!(chunk, Chunk::Finish { .. })).count();
    assert!(ends <= 1 && (ends == 0 || matches!(chunks.last(), Some(Chunk::Finish { .. }))), "{chunks:?}");
    let mut assembler = Assembler::new();
    for chunk in chunks {
        if assembler.push(chunk).is_err() {
            break;
        }
    }
    let mut calls = 0;
    drop(assembler.fold(|| {
        calls += 1;
        CallId::trusted(format!("call_{calls}"))
    }));
    assert!(chunks.len() <= 64 + answer.len(), "{} chunks of {} bytes", chunks.len(), answer.len());
}
