//! Random events of every type. They fit their schema; whether a log could hold them is not their business.

use crate::{
    RawJson,
    chunk::{BlockKind, Chunk, Finish, StreamRecord},
    event::*,
    ids::*,
    message::{Block, Failure, Message, Replay, Role, ToolMessage, Usage},
};
use proptest::{collection::vec, option, prelude::*};
use serde_json::Value;

/// Short text with the characters that break encoders.
pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z ]{0,12}",
        1 => "\\PC{0,6}",
        1 => proptest::sample::select(vec!["\0", "a\nb", "\u{2028}", "\"\\", "é🦀", "\\u0000"]).prop_map(str::to_owned),
    ]
}

fn name() -> impl Strategy<Value = String> {
    "[A-Za-z0-9._:-]{1,12}"
}

/// Any JSON but `null`, as compact text.
pub fn raw() -> impl Strategy<Value = RawJson> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(3, 12, 4, |inner| {
        let nullable = prop_oneof![4 => inner.clone(), 1 => Just(Value::Null)];
        prop_oneof![
            vec(nullable.clone(), 0..4).prop_map(Value::from),
            vec((name(), nullable), 0..4).prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    });
    tree.prop_map(|value| RawJson::from_value(&value))
}

macro_rules! ids {
    ($($function:ident = $id:ident),*) => {
        $(fn $function() -> impl Strategy<Value = $id> { name().prop_map($id::trusted) })*
    };
}
ids!(session_id = SessionId, item_id = ItemId, message_id = MessageId, retry_id = RetryId);

fn call_id() -> impl Strategy<Value = CallId> {
    text().prop_map(CallId::trusted)
}

fn turn() -> impl Strategy<Value = Turn> {
    any::<u32>().prop_map(Turn)
}

fn step() -> impl Strategy<Value = Step> {
    any::<u32>().prop_map(Step)
}

fn attempt_no() -> impl Strategy<Value = Attempt> {
    any::<u32>().prop_map(Attempt)
}

fn replay() -> impl Strategy<Value = Option<Replay>> {
    option::of((text(), text()).prop_map(|(provider, data)| Replay { provider, data }))
}

pub fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        (text(), replay()).prop_map(|(text, replay)| Block::Text { text, replay }),
        (text(), replay()).prop_map(|(text, replay)| Block::Reasoning { text, replay }),
        (call_id(), text(), text(), replay()).prop_map(|(call_id, name, arguments, replay)| Block::ToolCall {
            call_id,
            name,
            arguments,
            replay
        }),
        (text(), option::of(text()), option::of(text())).prop_map(|(media_type, data, url)| Block::Image {
            media_type,
            data,
            url
        }),
    ]
}

fn role() -> impl Strategy<Value = Role> {
    proptest::sample::select(vec![Role::System, Role::User, Role::Assistant, Role::Tool])
}

pub fn message() -> impl Strategy<Value = Message> {
    (message_id(), role(), vec(block(), 0..4), option::of(text())).prop_map(|(id, role, content, source)| Message {
        id,
        role,
        content,
        source,
    })
}

fn tool_message() -> impl Strategy<Value = ToolMessage> {
    (message_id(), call_id(), vec(block(), 0..3), any::<bool>())
        .prop_map(|(id, call_id, content, is_error)| ToolMessage { id, role: Role::Tool, call_id, content, is_error })
}

fn usage() -> impl Strategy<Value = Usage> {
    any::<[u64; 5]>().prop_map(|[input, cache_read, cache_write, output, reasoning]| Usage {
        input,
        cache_read,
        cache_write,
        output,
        reasoning,
    })
}

pub fn failure() -> impl Strategy<Value = Failure> {
    (name(), text(), option::of(any::<u16>()), option::of(any::<u64>()), option::of(text()), option::of(raw()))
        .prop_map(|(code, message, status, retry_after_ms, request_id, detail)| Failure {
            code,
            message,
            status,
            retry_after_ms,
            request_id,
            detail,
        })
}

fn cause() -> impl Strategy<Value = Cause> {
    prop_oneof![
        Just(Cause::User),
        Just(Cause::Parent),
        text().prop_map(|reason| Cause::Hook { reason }),
        Just(Cause::Disposed),
    ]
}

fn turn_reason() -> impl Strategy<Value = TurnReason> {
    prop_oneof![
        Just(TurnReason::Completed),
        text().prop_map(|reason| TurnReason::Rejected { reason }),
        cause().prop_map(|cause| TurnReason::Aborted { cause }),
        failure().prop_map(|failure| TurnReason::Error { failure }),
        Just(TurnReason::MaxTokens),
        Just(TurnReason::Interrupted),
    ]
}

fn origin() -> impl Strategy<Value = Origin> {
    proptest::sample::select(vec![Origin::Send, Origin::Steer, Origin::Inject, Origin::Context])
}

fn item() -> impl Strategy<Value = Item> {
    let target = proptest::sample::select(vec![Target::NextTurn, Target::NextStep]);
    (item_id(), target, any::<bool>(), origin(), message()).prop_map(|(id, target, wake, origin, message)| Item {
        id,
        target,
        wake,
        origin,
        message,
    })
}

fn chunk() -> impl Strategy<Value = Chunk> {
    let index = 0..4_u64;
    let kind = prop_oneof![
        Just(BlockKind::Text),
        Just(BlockKind::Reasoning),
        (call_id(), text()).prop_map(|(call_id, name)| BlockKind::ToolCall { call_id, name }),
    ];
    let finish = prop_oneof![
        Just(Finish::Stop),
        Just(Finish::ToolUse),
        Just(Finish::MaxTokens),
        failure().prop_map(|failure| Finish::Error { failure }),
        Just(Finish::Aborted),
    ];
    prop_oneof![
        (index.clone(), kind).prop_map(|(index, kind)| Chunk::BlockStart { index, kind }),
        (index.clone(), text()).prop_map(|(index, text)| Chunk::TextDelta { index, text }),
        (index.clone(), text()).prop_map(|(index, text)| Chunk::ReasoningDelta { index, text }),
        (index.clone(), text()).prop_map(|(index, text)| Chunk::CallFragment { index, text }),
        index.clone().prop_map(|index| Chunk::BlockEnd { index }),
        (index, text(), text()).prop_map(|(index, provider, data)| Chunk::ReplayState { index, provider, data }),
        usage().prop_map(|usage| Chunk::Usage { usage }),
        finish.prop_map(|finish| Chunk::Finish { finish }),
    ]
}

/// Any chunks in any order, at times that never go back.
pub fn stream() -> impl Strategy<Value = StreamRecord> {
    vec((0..1_000_u32, chunk()), 0..8).prop_map(|chunks| {
        let (mut record, mut t_ms) = (StreamRecord::default(), 0);
        for (dt_ms, chunk) in chunks {
            t_ms += dt_ms;
            record.push(t_ms, chunk);
        }
        record
    })
}

fn config() -> impl Strategy<Value = RequestConfig> {
    let temperature = option::of(-4.0..4.0_f64);
    (text(), text(), option::of(text()), temperature, option::of(any::<u32>()), option::of(vec(text(), 0..3))).prop_map(
        |(provider, model, reasoning_effort, temperature, max_tokens, stop)| RequestConfig {
            provider,
            model,
            reasoning_effort,
            temperature,
            max_tokens,
            stop,
        },
    )
}

fn tool_spec() -> impl Strategy<Value = ToolSpec> {
    (name(), text(), raw()).prop_map(|(name, description, schema)| ToolSpec { name, description, schema })
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

fn inbox_data() -> BoxedStrategy<EventData> {
    let ids = || vec(item_id(), 0..4);
    let cause = proptest::sample::select(vec![RemoveCause::Canceled, RemoveCause::Removed, RemoveCause::Disposed]);
    let proposal = any::<u32>().prop_map(Proposal);
    prop_oneof![
        (item(), option::of(any::<u32>())).prop_map(|(item, position)| InboxQueued { item, position }.into()),
        (item_id(), message()).prop_map(|(id, message)| InboxEdited { id, message }.into()),
        ids().prop_map(|ids| InboxMoved { ids }.into()),
        (ids(), cause).prop_map(|(ids, cause)| InboxRemoved { ids, cause }.into()),
        (turn(), proposal, step(), ids()).prop_map(|(turn, proposal, step, ids)| InboxClaimed {
            turn,
            proposal,
            step,
            ids
        }
        .into()),
        (ids(), proptest::collection::btree_map(item_id(), any::<u32>(), 0..3))
            .prop_map(|(ids, counts)| InboxRestored { ids, counts }.into()),
    ]
    .boxed()
}

fn boundary_data() -> BoxedStrategy<EventData> {
    let ids = || vec(item_id(), 0..4);
    let opened =
        proptest::sample::select(vec![OpenReason::Fresh, OpenReason::Resume, OpenReason::Fork, OpenReason::Repair]);
    prop_oneof![
        turn().prop_map(|turn| TurnStart { turn }.into()),
        (turn(), turn_reason(), any::<u32>(), ids()).prop_map(|(turn, reason, steps, unadmitted)| TurnEnd {
            turn,
            reason,
            steps,
            unadmitted
        }
        .into()),
        (turn(), step()).prop_map(|(turn, step)| StepStart { turn, step }.into()),
        (turn(), step()).prop_map(|(turn, step)| StepEnd { turn, step }.into()),
        (turn(), ids(), vec(block(), 0..3), option::of(text()), text()).prop_map(
            |(turn, ids, content, source, reason)| PromptBlocked { turn, ids, content, source, reason }.into()
        ),
        (opened, any::<u64>()).prop_map(|(reason, epoch)| SessionOpened { reason, epoch: Epoch(epoch) }.into()),
    ]
    .boxed()
}

fn request_data() -> BoxedStrategy<EventData> {
    let update = proptest::sample::select(vec![SystemUpdate::Replace, SystemUpdate::Append]);
    let reason = proptest::sample::select(vec![HeaderReason::Initial, HeaderReason::Resume, HeaderReason::Change]);
    let header = (config(), vec(text(), 0..3), vec(tool_spec(), 0..3), update, reason).prop_map(
        |(config, defaulted, tools, system_update, reason)| {
            RequestHeader { config, defaulted, tools, system_update, reason }.into()
        },
    );
    let context = (text(), text(), option::of(any::<u64>()), option::of(vec(text(), 0..3))).prop_map(
        |(provider, model, context_window, input_modalities)| {
            RequestContext { provider, model, context_window, input_modalities }.into()
        },
    );
    prop_oneof![
        message().prop_map(|message| SystemMessage { message }.into()),
        (message(), origin(), vec(item_id(), 0..3)).prop_map(|(message, origin, items)| UserMessage {
            message,
            origin,
            items
        }
        .into()),
        header,
        context,
    ]
    .boxed()
}

fn settled_data() -> BoxedStrategy<EventData> {
    let finish = proptest::sample::select(vec![
        FinishLabel::Stop,
        FinishLabel::ToolUse,
        FinishLabel::MaxTokens,
        FinishLabel::Aborted,
    ]);
    let outcome =
        proptest::sample::select(vec![AttemptOutcome::Failed, AttemptOutcome::StreamError, AttemptOutcome::Cancelled]);
    let at = || (turn(), step(), attempt_no());
    let route = || (text(), text(), digest());
    let message = (at(), message(), finish, option::of(usage()), stream(), option::of(any::<bool>()), route())
        .prop_map(
            |(
                (turn, step, attempt),
                message,
                finish,
                usage,
                stream,
                interrupted,
                (provider, model, request_digest),
            )| {
                AssistantMessage {
                    turn,
                    step,
                    attempt,
                    message,
                    finish,
                    usage,
                    stream,
                    interrupted,
                    provider,
                    model,
                    request_digest,
                }
                .into()
            },
        );
    let attempt = (at(), route(), outcome, option::of(failure()), option::of(usage()), stream()).prop_map(
        |((turn, step, attempt), (provider, model, request_digest), outcome, failure, usage, stream)| {
            AssistantAttempt { turn, step, attempt, provider, model, outcome, failure, usage, stream, request_digest }
                .into()
        },
    );
    prop_oneof![message, attempt].boxed()
}

fn work_data() -> BoxedStrategy<EventData> {
    let error = (text(), text()).prop_map(|(name, code)| ToolError { name, code });
    let mode = proptest::sample::select(vec![RetryMode::Normal, RetryMode::Always]);
    let budget = (any::<u32>(), option::of(any::<u32>()), any::<u64>());
    let scheduled = (retry_id(), (turn(), step(), attempt_no()), text(), text(), mode, budget, failure()).prop_map(
        |(retry_id, (turn, step, attempt), provider, policy_key, mode, (retry, max_retries, delay_ms), failure)| {
            RetryScheduled {
                retry_id,
                turn,
                step,
                attempt,
                provider,
                policy_key,
                mode,
                retry,
                max_retries,
                delay_ms,
                failure,
            }
            .into()
        },
    );
    prop_oneof![
        (turn(), step(), call_id(), text(), text()).prop_map(|(turn, step, call_id, name, arguments)| {
            ToolCall { turn, step, call_id, name, arguments }.into()
        }),
        (turn(), step(), tool_message(), option::of(error), option::of(raw()))
            .prop_map(|(turn, step, message, error, meta)| ToolResult { turn, step, message, error, meta }.into()),
        scheduled,
        retry_id().prop_map(|retry_id| RetryStarted { retry_id }.into()),
        ("x[a-z]{0,3}/[a-z]{1,4}", raw())
            .prop_map(|(type_name, data)| EventData::Plugin(PluginEvent { type_name, data })),
    ]
    .boxed()
}

/// Data of any type.
pub fn event_data() -> BoxedStrategy<EventData> {
    prop_oneof![
        6 => inbox_data(),
        6 => boundary_data(),
        4 => request_data(),
        2 => settled_data(),
        5 => work_data(),
    ]
    .boxed()
}

fn surface_op() -> impl Strategy<Value = SurfaceOp> {
    prop_oneof![
        Just(SurfaceOp::Append),
        Just(SurfaceOp::Prepend),
        any::<(u32, u32)>().prop_map(|(start, end)| SurfaceOp::Replace { start, end }),
    ]
}

/// An event of any type that could stand in a record.
pub fn event() -> BoxedStrategy<Event> {
    let cites = proptest::collection::btree_set(any::<u64>().prop_map(Seq), 0..3);
    (any::<u64>(), any::<i64>(), event_data(), surface_op(), cites, any::<bool>())
        .prop_map(|(seq, time_ms, data, op, cites, ignorable)| {
            let surface = data.is_surface().then_some(op);
            let body = EventBody { data, surface, cites: cites.into_iter().collect(), ignorable };
            Event { seq: Seq(seq), time_ms, body }
        })
        .boxed()
}

/// A header with every field, or with few.
pub fn session_header() -> BoxedStrategy<SessionHeader> {
    let parent = (session_id(), any::<u64>()).prop_map(|(session_id, seq)| ParentRef { session_id, seq: Seq(seq) });
    let labels = proptest::collection::btree_map(name(), text(), 0..3);
    let about = (option::of(text()), option::of(parent), option::of(any::<u64>()));
    let more = (option::of(text()), option::of(any::<u32>()), option::of(text()), labels);
    (session_id(), text(), any::<i64>(), about, more)
        .prop_map(|(session_id, agent, created_at_ms, (cwd, parent, seed_length), (origin, depth, preset, labels))| {
            SessionHeader {
                version: FORMAT_VERSION,
                session_id,
                agent,
                created_at_ms,
                cwd,
                parent,
                seed_length,
                origin,
                delegation_depth: depth,
                preset,
                labels,
            }
        })
        .boxed()
}
