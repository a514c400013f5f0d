-- What `filling.py` executes: a step per comment, in one transaction each.

-- ids
/* They sort by their number, before those that a service makes. */
CREATE FUNCTION bench_id(kind text, n bigint) RETURNS text IMMUTABLE LANGUAGE sql AS
$$ SELECT kind || '_00' || lpad(n::text, 24, '0') $$

-- stored
CREATE TABLE bench_stored (n int PRIMARY KEY, sha text)

-- plan
CREATE TABLE bench_plan AS
SELECT p.n, search, epoch, batch, place, coalesce(s.sha, md5(p.n::text) || md5('x' || p.n)) AS sha,
       CASE WHEN (hashint4(p.n) & 1023) / 1024.0 < 0.70 THEN 'succeeded' WHEN (hashint4(p.n) & 1023) / 1024.0 < 0.85 THEN 'crashed'
            WHEN (hashint4(p.n) & 1023) / 1024.0 < 0.90 THEN 'refused' ELSE 'cancelled' END AS outcome,
       now() - make_interval(secs => 60.0 * (:experiments - p.n)) AS at
FROM (
    SELECT n, n / :search_ideas AS search, n % :search_ideas / :epoch_ideas AS epoch,
           n / :epoch_ideas AS batch, n % :epoch_ideas AS place
    FROM generate_series(0, :searches * :search_ideas - 1) AS n
    UNION ALL
    SELECT n, NULL, NULL,
           :searches * :epochs + (n - :searches * :search_ideas) / :single_ideas,
           (n - :searches * :search_ideas) % :single_ideas
    FROM generate_series(:searches * :search_ideas, :experiments - 1) AS n
) AS p LEFT JOIN bench_stored AS s ON s.n = p.n

-- plan key
ALTER TABLE bench_plan ADD PRIMARY KEY (n)

-- conditions
INSERT INTO condition_set (id, hardware_class, facts, created_at) VALUES ('cond_bench', 'bench', '{"hardware_class": "bench"}', now())

-- searches
INSERT INTO search (id, owner, environment_id, profile, strategy, seed, epochs, batch_size,
    ideator, executor, config, labels, caps, state, driver, created_at, finished_at)
SELECT bench_id('srch', search), :owner, :environment, 'tiny', 'evolution', search, :epochs,
    :epoch_ideas, 'anthropic\:claude-sonnet-4-5', 'anthropic\:claude-sonnet-4-5', '{}', '{}',
    '{}', 'finished', 'client', min(at), max(at)
FROM bench_plan WHERE search IS NOT NULL GROUP BY search

-- batches
INSERT INTO batch (id, owner, environment_id, profile, hardware_class, conditions_id,
    executor, ideator, options, labels, search_id, epoch, kind, state, version, created_at,
    finished_at)
SELECT bench_id('bat', batch),
    CASE WHEN search IS NULL AND batch % 4 = 0 THEN 'another' ELSE :owner END,
    :environment, 'tiny', 'bench', 'cond_bench',
    (ARRAY['anthropic\:claude-sonnet-4-5', 'openai\:gpt-5', 'offline\:literal'])[1 + batch % 3],
    NULL, CAST(:options AS jsonb), '{}',
    CASE WHEN search IS NOT NULL THEN bench_id('srch', search) END, epoch, 'score',
    'finished', 300, min(at), max(at) + interval '1 hour'
FROM bench_plan GROUP BY search, epoch, batch

-- ideas
INSERT INTO idea (id, batch_id, position, client_key, text, thinking, operator, parents,
    "similar")
SELECT bench_id('idea', n), bench_id('bat', batch), place, 'key-' || n,
    'Idea ' || n || ': ' || repeat('change the ' || left(md5(n::text), 4 + n % 9)
        || ' of the search. ', 4 + n % 40),
    CASE WHEN search IS NOT NULL THEN repeat(md5('t' || n) || ' ', 10 + n % 60) END,
    (ARRAY['explore', 'exploit', 'seed'])[1 + n % 3],
    CASE WHEN epoch > 0
        THEN jsonb_build_array((epoch - 1) || '.' || (hashint4(n) & 63)) ELSE '[]' END,
    '[]'
FROM bench_plan

-- codebases
INSERT INTO codebase (id, environment_id, canonical, created_at) SELECT sha, :environment, md5('c' || n), at FROM bench_plan WHERE outcome IN ('succeeded', 'crashed')

-- experiments
INSERT INTO experiment (id, batch_id, idea_id, position, state, failure, codebase_id,
    was_started, created_at, finished_at)
SELECT bench_id('exp', n), bench_id('bat', batch), bench_id('idea', n), place,
    CASE WHEN outcome IN ('crashed', 'refused') THEN 'failed' ELSE outcome END,
    CASE outcome
        WHEN 'crashed' THEN jsonb_build_object('stage', 'train', 'code', 'crashed',
            'message', 'ValueError: ' || repeat(md5(n::text), 3))
        WHEN 'refused' THEN jsonb_build_object('stage', 'implement', 'code', 'no_match',
            'message', 'hunk 1 fits nowhere: ' || md5(n::text)) END,
    CASE WHEN outcome IN ('succeeded', 'crashed') THEN sha END,
    outcome IN ('succeeded', 'crashed'), at, at + interval '50 minutes'
FROM bench_plan

-- implementations
INSERT INTO implementation (id, experiment_id, executor, state, codebase_id, winner, faults,
    repairs, created_at, finished_at)
SELECT bench_id('impl', n), bench_id('exp', n), 'anthropic\:claude-sonnet-4-5',
    CASE WHEN outcome = 'refused' THEN 'failed' WHEN outcome = 'cancelled' THEN outcome
         ELSE 'succeeded' END,
    CASE WHEN outcome IN ('succeeded', 'crashed') THEN sha END,
    CASE WHEN outcome IN ('succeeded', 'crashed') THEN 0 END, 0, 0, at,
    at + interval '1 minute'
FROM bench_plan

-- samples
INSERT INTO sample (implementation_id, sample, revision, is_repair, fitted, state, code,
    prompt_version, answer, diff, patch_log, input_tokens, cached_input_tokens,
    output_tokens, cost_usd, tries, interrupted, started_at, finished_at)
SELECT bench_id('impl', n), 0, 0, false, outcome <> 'refused',
    CASE WHEN outcome = 'refused' THEN 'failed' ELSE 'succeeded' END, NULL, 'v1',
    repeat(md5('a' || n) || E'\n', 20 + n % 40), repeat('+' || md5('d' || n) || E'\n', 20),
    'applied', 3000 + n % 900, 2000, 400 + n % 700, 0.01 + (n % 90) * 0.001, 1, 0, at,
    at + interval '40 seconds'
FROM bench_plan WHERE outcome <> 'cancelled'

-- calls
INSERT INTO model_call (id, owner, search_id, batch_id, implementation_id, sample, revision,
    number, model, request_hash, prompt_version, state, input_tokens, cached_input_tokens,
    cache_write_tokens, output_tokens, is_estimate, is_replay, cost_usd, seconds,
    started_at, finished_at)
SELECT bench_id('call', n), :owner, CASE WHEN search IS NOT NULL THEN bench_id('srch', search) END,
    bench_id('bat', batch), bench_id('impl', n), 0, 0, 1, 'anthropic\:claude-sonnet-4-5',
    md5('r' || n), 'v1', 'returned', 3000 + n % 900, 2000, 0, 400 + n % 700, false, false,
    0.01 + (n % 90) * 0.001, 12.5, at, at + interval '40 seconds'
FROM bench_plan WHERE outcome <> 'cancelled'

-- measurements
INSERT INTO measurement (id, kind, codebase_id, environment_id, profile, seed,
    hardware_class, conditions_id, replicate, owner, state, failure, priority,
    needs_isolation, cpus, gpus, memory_bytes, budget_seconds, batch_at,
    infrastructure_failures, cancel_requested, search_bits, sealed_bits, created_at,
    queued_at, finished_at)
SELECT bench_id('meas', n + 20), 'score', sha, :environment, 'tiny', 0, 'bench', 'cond_bench', 0,
    :owner, CASE outcome WHEN 'crashed' THEN 'failed' ELSE 'succeeded' END,
    CASE outcome WHEN 'crashed' THEN jsonb_build_object('stage', 'train', 'code', 'crashed',
        'message', 'ValueError: ' || repeat(md5(n::text), 3)) END,
    0, true, 1, 0, 268435456, 20, at, 0, false, 12, 0, at, at, at + interval '50 minutes'
FROM bench_plan WHERE outcome IN ('succeeded', 'crashed')
UNION ALL
SELECT bench_id('meas', seed), 'score', :own, :environment, 'tiny', seed, 'bench', 'cond_bench',
    0, :owner, 'succeeded', NULL, 0, true, 1, 0, 268435456, 20, now(), 0, false, 12, 0,
    now() - interval '1 year', now(), now()
FROM generate_series(0, 19) AS seed

-- links
INSERT INTO experiment_measurement (experiment_id, measurement_id, role)
SELECT bench_id('exp', n), bench_id('meas', n + 20), 'score'
FROM bench_plan WHERE outcome IN ('succeeded', 'crashed')

-- attempts
INSERT INTO attempt (id, measurement_id, number, worker_id, lease_token, lease_expires_at,
    state, cpus, gpus, memory_bytes, bound_seconds, devices, conditions, infrastructure,
    rings, created_at, started_at, finished_at, released_at)
SELECT replace(id, 'meas_', 'att_'), id, 1, :worker, row_number() OVER (), created_at, state,
    1, 0, 268435456, 60, '[]', '{}', false, 0, created_at,
    created_at + interval '1 second', finished_at, finished_at
FROM measurement

-- results
INSERT INTO result (measurement_id, attempt_id, metric, shown_metric, metrics, provenance,
    seconds, created_at)
SELECT m.id, replace(m.id, 'meas_', 'att_'), x, round(x::numeric, 4),
    jsonb_build_object('score', x, 'evaluations', 200, 'height', x * 2),
    jsonb_build_object('isolated', true, 'artifact', md5(m.id), 'held_out', 'public',
        'train_wall', 11.5, 'train_compute', 9.25, 'train_memory', 90000000,
        'train_artifact', 812, 'worker', 'bench-host', 'sandbox', 'bubblewrap'),
    12.0 + (hashtext(m.id) & 7), m.finished_at
FROM measurement AS m
CROSS JOIN LATERAL (SELECT 0.3 + 0.6 * ((hashtext(m.id) & 65535) / 65536.0) AS x) AS value
WHERE m.state = 'succeeded'

-- logs
INSERT INTO log_chunk (attempt_id, stream, byte_offset, size, data) SELECT id, 'train', 0, 640, convert_to(repeat(md5(id), 20), 'UTF8') FROM attempt

-- events
INSERT INTO event (batch_id, experiment_id, type, data, created_at)
SELECT bench_id('bat', batch), bench_id('exp', n), 'experiment.changed',
    jsonb_build_object('state', state), at + make_interval(mins => 10 * k::int)
FROM bench_plan CROSS JOIN LATERAL unnest(ARRAY['implementing', 'queued', 'running',
    CASE WHEN outcome IN ('crashed', 'refused') THEN 'failed' ELSE outcome END])
    WITH ORDINALITY AS told(state, k)
ORDER BY batch, k, n

-- ends
INSERT INTO event (batch_id, type, data, created_at) SELECT id, 'batch.finished', '{}', finished_at FROM batch

-- epochs
INSERT INTO epoch (search_id, number, ideas, batch_id, created_at)
SELECT b.search_id, b.epoch, jsonb_agg(jsonb_build_object('text', i.text) ORDER BY i.position),
    b.id, b.created_at
FROM batch AS b JOIN idea AS i ON i.batch_id = b.id WHERE b.search_id IS NOT NULL
GROUP BY b.id

-- search events
INSERT INTO search_event (search_id, type, data, created_at)
SELECT search_id, 'search.epoch_submitted', jsonb_build_object('epoch', number), created_at
FROM epoch ORDER BY search_id, number

-- search ends
INSERT INTO search_event (search_id, type, data, created_at) SELECT id, 'search.finished', '{}', finished_at FROM search

-- points
INSERT INTO curve_point (attempt_id, seq, step, "values")
SELECT a.id, k, k * 10, jsonb_build_object('score', 0.9 - 0.5 / (1 + k),
    'height', 2.0 / (1 + k) + (hashint4(k) & 255) / 4096.0)
FROM attempt AS a CROSS JOIN generate_series(0, :points - 1) AS k
WHERE (hashtext(a.id) & 2147483647) % :chunks = :chunk
