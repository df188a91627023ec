-- The ledger. Every table is written by one file of one folder of include/; the comment names it.
-- All times come from batch_inference.now(), which a test can shift together with the emulator's clock.

create table clock (                               -- ledger/clock.py
    only_row boolean primary key default true check (only_row),
    offset_seconds double precision not null default 0
);
insert into clock default values;

create function now() returns timestamptz language sql volatile as $$
    select clock_timestamp() + make_interval(secs => offset_seconds) from batch_inference.clock
$$;

create table spaces (                              -- batches/spaces.py
    space text primary key,                        -- 32 hex: the hash of all that an answer depends on
    description jsonb not null,
    epoch bigint not null default 0,               -- raised by every registration of shards
    proven_at timestamptz,                         -- the last probe that succeeded
    dimensions integer,                            -- what the probe returned
    model_named text                               -- the model that the response named
);

create table runs (                                -- batches/runs.py
    run text primary key,                          -- '{dag_id}/{airflow run_id}', cut to what paths allow
    workload text not null,
    corpus text not null,
    state text not null check (state in ('running', 'succeeded', 'failed', 'dry_run', 'cancelled')),
    plan_uri text,
    space text,
    priority integer not null default 0,
    budget_usd double precision,
    estimated_usd double precision,
    counts jsonb not null default '{}',            -- what each step reported, by step
    stopped text not null default '',              -- why it sends nothing more, until it is taken up again
    started_at timestamptz not null,
    working_since timestamptz not null            -- when it began, or was last taken up again after its end
        default batch_inference.now(),
    finished_at timestamptz
);
create index runs_by_corpus on runs (corpus, started_at);

create table shards (                              -- batches/shards.py
    shard text primary key,                        -- 32 hex: the hash of its content
    space text not null references spaces,
    items integer not null,
    lines integer not null,
    bytes bigint not null,
    tokens bigint not null,
    registered_at timestamptz not null
);

create table run_shards (                          -- batches/shards.py; a run's list survives clears
    run text not null references runs,
    round smallint not null check (round in (1, 2)),
    ordinal integer not null,
    shard text not null references shards,
    attempt integer not null,
    joined boolean not null,                       -- already in flight for another run
    primary key (run, round, ordinal),
    unique (run, round, shard)
);
create index run_shards_by_shard on run_shards (shard, attempt);

create table submissions (                         -- batches/submissions.py
    id uuid primary key,
    shard text not null references shards,
    attempt integer not null,
    run text not null references runs,             -- the run that pays
    provider text not null,
    account text not null,
    model text not null,
    endpoint text not null,
    deployment text not null,
    state text not null check (state in
        ('planned', 'creating', 'running', 'ended', 'landed', 'void')),
    reason text not null default '',               -- why it waits, failed or is void; for people
    lines integer not null,
    reserved_tokens bigint not null default 0,     -- admission; zero once it ended
    reserved_requests bigint not null default 0,
    reserved_usd double precision not null default 0,
    file_id text,
    batch_id text,
    after_batch_id text,                           -- where the provider has no metadata: newest batch before create,
    until_batch_id text,                           -- and when the grace for an unknown one was over; '' means none
    provider_status text,
    output_file_id text,
    error_file_id text,
    look_ups integer not null default 0,           -- completed look-ups of an unknown create that found nothing
    first_look_up_at timestamptz,
    missing_since timestamptz,                     -- the first 404 in a row
    counts jsonb not null default '{}',            -- outcomes by class
    usage jsonb not null default '{}',
    cost_usd double precision,
    planned_at timestamptz not null,
    uploaded_at timestamptz,
    creating_at timestamptz,
    created_at timestamptz,
    ended_at timestamptz,
    landed_at timestamptz,
    not_before timestamptz,                        -- back-off after a full queue
    queued_at timestamptz,                         -- since when it stands in line for room
    queue_seen_at timestamptz,                     -- when its task last asked for room
    unique (shard, attempt)
);
create index submissions_live on submissions (account, model)
    where state in ('planned', 'creating', 'running', 'ended');
create unique index submissions_batch on submissions (provider, account, batch_id)
    where batch_id is not null and state <> 'void';
create index submissions_by_run on submissions (run);

create table submission_events (                   -- batches/submissions.py; a submission's story
    number bigint generated always as identity primary key,
    submission uuid not null references submissions,
    at timestamptz not null,
    event text not null,
    detail text not null
);
create index submission_events_by_submission on submission_events (submission, number);

create table account_limits (                      -- batches/admission.py
    account text not null,
    model text not null,
    halved integer not null default 0,             -- how often the working limit was halved
    until timestamptz not null,                    -- end of the cool-down
    primary key (account, model)
);

create table documents (                           -- corpora/documents.py
    corpus text not null,
    document_id text not null,
    partition text not null,
    content_hash bytea not null,                   -- of the text that is chunked
    metadata_hash bytea not null,                  -- of all else that a chunk's metadata holds
    updated_at timestamptz,                        -- as the source says
    deleted boolean not null default false,
    chunks integer not null,
    chunking text not null,                        -- its chunks are stored under this fingerprint
    run text not null,                             -- the run that wrote this row,
    change text not null,                          -- and what it was to that run: new, changed, …
    read_at timestamptz not null,                  -- when that run began to read the source
    changed_at timestamptz not null,
    primary key (corpus, document_id)
);
create index documents_by_partition on documents (corpus, partition);

create table index_versions (                      -- indexes/versions.py
    version text primary key,                      -- '{corpus}__{fingerprint}'
    corpus text not null,
    store text not null,
    store_url text not null,
    space text not null,
    chunking text not null,
    metric text not null,
    dimensions integer not null,
    state text not null check (state in ('building', 'publishing', 'live', 'standby', 'retired')),
    pointer jsonb,                                 -- what live.json says while this version is live
    built_by text not null,
    created_at timestamptz not null,
    published_at timestamptz
);
create unique index one_live_version on index_versions (corpus) where state = 'live';

create table coverage (                            -- indexes/versions.py
    version text not null references index_versions,
    partition text not null,
    run text not null,
    covered_at timestamptz not null,
    primary key (version, partition)
);

create table dead_letters (                        -- batches/dead_letters.py
    id bigint generated always as identity primary key,
    workload text not null,
    corpus text not null,
    space text not null,
    key text not null,
    document_id text not null default '',
    class text not null,
    code text not null default '',
    message text not null default '',
    attempts integer not null default 1,
    state text not null check (state in ('open', 'replaying', 'resolved', 'discarded')),
    reason text not null default '',               -- why it was discarded, or resolved without an answer
    body_uri text not null default '',
    run text not null,                             -- the run that failed with it last
    replay text not null default '',               -- the run that asks, or last asked, it again
    opened_at timestamptz not null,
    changed_at timestamptz not null
);
create unique index one_letter_an_item on dead_letters (workload, corpus, space, key)
    where state in ('open', 'replaying', 'discarded');
