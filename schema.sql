-- sqlite-outbox: what is stored, schema version 1.
--
-- Run this file in your own migration, as often as you like. It creates only
-- objects named outbox…, opens no transaction, sets no pragma, and needs
-- SQLite 3.24 or newer.
--
-- To send something, insert it in the same transaction as your own change:
--
--   INSERT INTO outbox (channel, dedupe_key, payload) VALUES (?, ?, ?)
--     ON CONFLICT (channel, dedupe_key) DO NOTHING;
--
-- You may also give event_type, recipient, ordering_key, principal,
-- content_type, headers, available_at and expires_at. Leave the rest to its
-- defaults. A message that is 'pending' or 'waiting' may be cancelled by setting
-- status to 'cancelled' and settled_at to now. All else about a stored message
-- belongs to the outbox: let the library or the `outbox` tool change it.
--
-- All times are whole milliseconds since 1970, UTC.

-- The messages. Small and busy columns stand first, so that looking for work
-- does not read payloads.
CREATE TABLE IF NOT EXISTS outbox (
  -- The order of enqueuing. Given by SQLite and never used again in this file.
  id INTEGER PRIMARY KEY AUTOINCREMENT
    CHECK (id BETWEEN 1 AND 9007199254740991),
  -- The route the message takes, such as 'sales'.
  channel TEXT NOT NULL
    CHECK (typeof(channel) = 'text' AND channel <> '' AND instr(channel, ':') = 0),
  -- pending: waits for its time or for a free worker.
  -- waiting: stands behind an earlier message of its ordering key.
  -- sending: claimed; next_attempt_at is the end of the lease.
  -- sent, expired, cancelled: settled. dead: refused, until a person decides.
  status TEXT NOT NULL DEFAULT 'pending'
    CHECK (status = 'pending' OR status = 'sending' OR status = 'sent' OR status = 'waiting'
           OR status = 'dead' OR status = 'expired' OR status = 'cancelled'),
  -- When it may be claimed next; 0 is at once.
  next_attempt_at INTEGER NOT NULL DEFAULT 0
    CHECK (typeof(next_attempt_at) = 'integer' AND next_attempt_at >= 0),
  -- How often it was claimed. Only rises: (id, claims) names one claim.
  claims INTEGER NOT NULL DEFAULT 0
    CHECK (typeof(claims) = 'integer' AND claims BETWEEN 0 AND 1000000000),
  -- Failed attempts charged to this message; its retry budget.
  attempts INTEGER NOT NULL DEFAULT 0
    CHECK (typeof(attempts) = 'integer' AND attempts BETWEEN 0 AND 1000000000),
  -- Messages of one channel with the same key arrive one at a time, in order.
  ordering_key TEXT
    CHECK (typeof(ordering_key) IN ('text', 'null') AND ordering_key <> ''),
  -- The identity the receiver sees, the same at every attempt.
  message_id TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
    CHECK (typeof(message_id) = 'text' AND message_id <> ''),
  -- Your own key: a second insert with it is a duplicate, not a message.
  dedupe_key TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
    CHECK (typeof(dedupe_key) = 'text' AND dedupe_key <> ''),
  event_type TEXT
    CHECK (typeof(event_type) IN ('text', 'null')),
  recipient TEXT
    CHECK (typeof(recipient) IN ('text', 'null')),
  -- Whose credentials it goes out with.
  principal TEXT
    CHECK (typeof(principal) IN ('text', 'null')),
  content_type TEXT NOT NULL DEFAULT 'application/json'
    CHECK (typeof(content_type) = 'text'),
  -- Not before, and not after.
  available_at INTEGER
    CHECK (typeof(available_at) IN ('integer', 'null')),
  expires_at INTEGER
    CHECK (typeof(expires_at) IN ('integer', 'null')),
  created_at INTEGER NOT NULL
    DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
    CHECK (typeof(created_at) = 'integer'),
  last_attempt_at INTEGER
    CHECK (typeof(last_attempt_at) IN ('integer', 'null')),
  settled_at INTEGER
    CHECK (typeof(settled_at) IN ('integer', 'null')),
  -- The receiver's own id for it, such as an invoice number.
  provider_id TEXT
    CHECK (typeof(provider_id) IN ('text', 'null')),
  last_error TEXT
    CHECK (typeof(last_error) IN ('text', 'null')),
  -- A JSON object of further request headers. Never credentials.
  headers TEXT
    CHECK (typeof(headers) IN ('text', 'null')),
  -- What the receiver answered, shortened.
  answer TEXT
    CHECK (typeof(answer) IN ('text', 'null')),
  -- Sent byte for byte. Of a message long settled it may be emptied.
  payload BLOB NOT NULL
    CHECK (typeof(payload) IN ('text', 'blob')),
  UNIQUE (channel, dedupe_key),
  CHECK (status <> 'waiting' OR ordering_key IS NOT NULL)
);

-- A row for every channel that ever had a state to show.
CREATE TABLE IF NOT EXISTS outbox_channel (
  channel TEXT NOT NULL PRIMARY KEY
    CHECK (typeof(channel) = 'text' AND channel <> '' AND instr(channel, ':') = 0),
  -- What a dead message does to those behind it: hold them, or let them pass.
  -- Change it only through the outbox, which then mends the lanes.
  on_dead TEXT NOT NULL DEFAULT 'hold'
    CHECK (on_dead IN ('hold', 'skip')),
  state TEXT NOT NULL DEFAULT 'ok'
    CHECK (state IN ('ok', 'offline', 'unauthorised', 'rejecting', 'holding')),
  -- In this state since; until the next probe, or the end of the hold.
  since INTEGER
    CHECK (typeof(since) IN ('integer', 'null')),
  until INTEGER
    CHECK (typeof(until) IN ('integer', 'null')),
  reason_code TEXT
    CHECK (typeof(reason_code) IN ('text', 'null')),
  reason TEXT
    CHECK (typeof(reason) IN ('text', 'null')),
  -- Probes that failed in a row.
  failures INTEGER NOT NULL DEFAULT 0
    CHECK (typeof(failures) = 'integer' AND failures BETWEEN 0 AND 1000000000),
  -- 1: a delivery has been seen that may pay for one charged failure.
  evidence INTEGER NOT NULL DEFAULT 0
    CHECK (typeof(evidence) = 'integer' AND evidence IN (0, 1)),
  -- The next probe: 0 the newest fresh message, 1 the retry that is due first.
  probe_turn INTEGER NOT NULL DEFAULT 0
    CHECK (typeof(probe_turn) = 'integer' AND probe_turn IN (0, 1)),
  -- Rejections in a row without a delivery.
  rejections INTEGER NOT NULL DEFAULT 0
    CHECK (typeof(rejections) = 'integer' AND rejections BETWEEN 0 AND 1000000000),
  paused_at INTEGER
    CHECK (typeof(paused_at) IN ('integer', 'null')),
  paused_by TEXT
    CHECK (typeof(paused_by) IN ('text', 'null')),
  pause_reason TEXT
    CHECK (typeof(pause_reason) IN ('text', 'null')),
  -- The receiver's clock minus ours, in milliseconds, where that is worth a look.
  clock_skew INTEGER
    CHECK (typeof(clock_skew) IN ('integer', 'null'))
) WITHOUT ROWID;

-- Attempts that failed, a bounded number of them for each message.
CREATE TABLE IF NOT EXISTS outbox_attempt (
  id INTEGER PRIMARY KEY,
  message INTEGER NOT NULL,
  at INTEGER NOT NULL,
  duration_ms INTEGER,
  outcome TEXT NOT NULL,
  http_status INTEGER,
  -- 0: not charged to the message; else its `attempts` after the charge.
  charged INTEGER NOT NULL DEFAULT 0,
  error TEXT
);

-- What people did to messages and channels, and why.
CREATE TABLE IF NOT EXISTS outbox_audit (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL
    DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  who TEXT NOT NULL,
  action TEXT NOT NULL,
  message INTEGER,
  channel TEXT,
  reason TEXT,
  former_message_id TEXT,
  former_payload BLOB
);

-- Duplicates whose content differed from the message that holds their key.
-- They are not sent; a person should look at them, and may delete them.
CREATE TABLE IF NOT EXISTS outbox_conflict (
  id INTEGER PRIMARY KEY,
  at INTEGER NOT NULL
    DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
  -- The outbox.id that held the key, and its ordering key.
  message INTEGER NOT NULL,
  message_ordering_key TEXT,
  channel TEXT NOT NULL,
  dedupe_key TEXT NOT NULL,
  event_type TEXT,
  recipient TEXT,
  ordering_key TEXT,
  principal TEXT,
  content_type TEXT NOT NULL,
  headers TEXT,
  available_at INTEGER,
  expires_at INTEGER,
  payload BLOB NOT NULL
);

-- How many unsent messages (pending, waiting, sending) a block of 1024 ids has,
-- so that they can be counted without looking at each: block 0 has the ids 1 to
-- 1024. A block without a row is counted by looking, so removing rows from here
-- is always safe. Triggers keep it; write nothing to it yourself.
CREATE TABLE IF NOT EXISTS outbox_census (
  block INTEGER PRIMARY KEY,
  unsent INTEGER NOT NULL
);

-- Facts about this file. A program older than min_writer must not write.
CREATE TABLE IF NOT EXISTS outbox_meta (
  key TEXT NOT NULL PRIMARY KEY,
  value
) WITHOUT ROWID;

-- What is due, by channel; also the leases that have run out.
CREATE INDEX IF NOT EXISTS outbox_due
  ON outbox (channel, status, next_attempt_at, id)
  WHERE status = 'pending' OR status = 'sending';

-- The lanes: messages of one channel with one ordering key.
CREATE INDEX IF NOT EXISTS outbox_lane
  ON outbox (channel, ordering_key, status, id)
  WHERE ordering_key IS NOT NULL
    AND (status = 'pending' OR status = 'waiting' OR status = 'sending' OR status = 'dead');

CREATE INDEX IF NOT EXISTS outbox_expiry
  ON outbox (expires_at)
  WHERE expires_at IS NOT NULL AND (status = 'pending' OR status = 'waiting');

CREATE INDEX IF NOT EXISTS outbox_settled
  ON outbox (channel, status, settled_at)
  WHERE status = 'sent' OR status = 'expired' OR status = 'cancelled';

CREATE INDEX IF NOT EXISTS outbox_dead_rows
  ON outbox (channel, status, id)
  WHERE status = 'dead';

CREATE INDEX IF NOT EXISTS outbox_attempt_message
  ON outbox_attempt (message, id);

CREATE INDEX IF NOT EXISTS outbox_conflict_key
  ON outbox_conflict (channel, dedupe_key);

-- The triggers compare a status with one text after the other: for IN with three
-- or more, SQLite builds a table anew at every row, which takes longer than all
-- else that they do.

-- The lane rule. Of the messages of one channel with one ordering key, only
-- the lowest unsettled one may be 'pending', and none while one is 'sending';
-- the others are 'waiting'. A dead message holds all that stand behind it,
-- unless its channel skips the dead.
--
-- SQLite has no procedures, so this view serves as one: it has no rows, and
-- inserting (channel, ordering_key) into it puts that lane in order; without
-- an ordering key there is no lane. Doing so is always safe. The triggers below do it after every change; by hand it
-- mends a lane that was changed behind their back.
CREATE VIEW IF NOT EXISTS outbox_lane_procedure (channel, ordering_key) AS
  SELECT NULL, NULL WHERE 0;

CREATE TRIGGER IF NOT EXISTS outbox_lane_order
INSTEAD OF INSERT ON outbox_lane_procedure
WHEN NEW.ordering_key IS NOT NULL
BEGIN
  -- Demote whatever may not be pending.
  UPDATE outbox SET status = 'waiting'
   WHERE channel = NEW.channel AND ordering_key = NEW.ordering_key AND status = 'pending'
     AND (EXISTS (SELECT 1 FROM outbox AS o
                   WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                     AND o.status = 'sending')
          OR id > (SELECT min(o.id) FROM outbox AS o
                    WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                      AND o.status = 'pending')
          OR id > (SELECT min(o.id) FROM outbox AS o
                    WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                      AND o.status = 'waiting')
          OR id > (SELECT min(o.id) FROM outbox AS o
                    WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                      AND o.status = 'dead')
             AND NOT EXISTS (SELECT 1 FROM outbox_channel AS c
                              WHERE c.channel = NEW.channel AND c.on_dead = 'skip'));

  -- Where none is pending now, promote the lowest if nothing stands before it.
  UPDATE outbox SET status = 'pending'
   WHERE id = (SELECT min(o.id) FROM outbox AS o
                WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                  AND o.status = 'waiting')
     AND NOT EXISTS (SELECT 1 FROM outbox AS o
                      WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                        AND o.status = 'pending')
     AND NOT EXISTS (SELECT 1 FROM outbox AS o
                      WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                        AND o.status = 'sending')
     AND (NOT EXISTS (SELECT 1 FROM outbox AS o
                       WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                         AND o.status = 'dead' AND o.id < outbox.id)
          OR EXISTS (SELECT 1 FROM outbox_channel AS c
                      WHERE c.channel = NEW.channel AND c.on_dead = 'skip'));
END;

-- The guard. INSERT OR IGNORE would drop a row that breaks a rule of the table
-- without a word, and with it a message; here the row is refused aloud.
--
-- The conflict keeper. DO NOTHING drops a duplicate; if its content is another
-- than that of the message holding the key, it is kept in outbox_conflict.
-- A stored payload that was emptied after settling is taken for the same.
--
-- Both stand in one trigger, and the guard in its condition, for speed: a good
-- row with a new key goes no further. So what every row has is tested without
-- a function: numbers come before texts, and texts before blobs.
CREATE TRIGGER IF NOT EXISTS outbox_guard
BEFORE INSERT ON outbox
WHEN CASE
    WHEN (NEW.channel > '' AND NEW.channel < x'') IS NOT 1 OR instr(NEW.channel, ':') > 0
      THEN RAISE(ABORT, 'outbox: channel must be a text, not empty and without a colon')
    WHEN (NEW.dedupe_key > '' AND NEW.dedupe_key < x'') IS NOT 1
      THEN RAISE(ABORT, 'outbox: dedupe_key must be a text and not empty')
    WHEN (NEW.payload >= '') IS NOT 1
      THEN RAISE(ABORT, 'outbox: payload must be a text or a blob')
    WHEN NEW.status IS NOT 'pending'
         AND (NEW.status IS NULL OR NEW.status NOT IN
              ('waiting', 'sending', 'sent', 'dead', 'expired', 'cancelled'))
      THEN RAISE(ABORT, 'outbox: status is not one of the known ones; leave it to its default')
    WHEN NEW.status = 'waiting' AND NEW.ordering_key IS NULL
      THEN RAISE(ABORT, 'outbox: a message without ordering_key cannot be waiting')
    WHEN NEW.next_attempt_at IS NOT 0
         AND (typeof(NEW.next_attempt_at) <> 'integer' OR NEW.next_attempt_at < 0)
      THEN RAISE(ABORT, 'outbox: next_attempt_at must be an integer, 0 or more')
    WHEN NEW.claims IS NOT 0
         AND (typeof(NEW.claims) <> 'integer' OR NEW.claims NOT BETWEEN 0 AND 1000000000)
      THEN RAISE(ABORT, 'outbox: claims must be an integer from 0 to 1000000000')
    WHEN NEW.attempts IS NOT 0
         AND (typeof(NEW.attempts) <> 'integer' OR NEW.attempts NOT BETWEEN 0 AND 1000000000)
      THEN RAISE(ABORT, 'outbox: attempts must be an integer from 0 to 1000000000')
    WHEN NEW.ordering_key IS NOT NULL AND (typeof(NEW.ordering_key) <> 'text' OR NEW.ordering_key = '')
      THEN RAISE(ABORT, 'outbox: ordering_key must be null or a text that is not empty')
    WHEN (NEW.message_id > '' AND NEW.message_id < x'') IS NOT 1
      THEN RAISE(ABORT, 'outbox: message_id must be a text and not empty')
    WHEN NEW.content_type IS NOT 'application/json' AND typeof(NEW.content_type) <> 'text'
      THEN RAISE(ABORT, 'outbox: content_type must be a text')
    WHEN typeof(NEW.created_at) <> 'integer'
      THEN RAISE(ABORT, 'outbox: created_at must be an integer, milliseconds since 1970')
    WHEN NEW.available_at IS NOT NULL AND typeof(NEW.available_at) <> 'integer'
      OR NEW.expires_at IS NOT NULL AND typeof(NEW.expires_at) <> 'integer'
      OR NEW.last_attempt_at IS NOT NULL AND typeof(NEW.last_attempt_at) <> 'integer'
      OR NEW.settled_at IS NOT NULL AND typeof(NEW.settled_at) <> 'integer'
      THEN RAISE(ABORT, 'outbox: available_at, expires_at, last_attempt_at and settled_at must be null or integers, milliseconds since 1970')
    WHEN NEW.event_type IS NOT NULL AND typeof(NEW.event_type) <> 'text'
      OR NEW.recipient IS NOT NULL AND typeof(NEW.recipient) <> 'text'
      OR NEW.principal IS NOT NULL AND typeof(NEW.principal) <> 'text'
      OR NEW.headers IS NOT NULL AND typeof(NEW.headers) <> 'text'
      THEN RAISE(ABORT, 'outbox: event_type, recipient, principal and headers must be null or texts')
    WHEN NEW.provider_id IS NOT NULL AND typeof(NEW.provider_id) <> 'text'
      OR NEW.last_error IS NOT NULL AND typeof(NEW.last_error) <> 'text'
      OR NEW.answer IS NOT NULL AND typeof(NEW.answer) <> 'text'
      THEN RAISE(ABORT, 'outbox: provider_id, last_error and answer must be null or texts')
    -- An id that was not given reads as -1 here.
    WHEN NEW.id <> -1 AND NEW.id NOT BETWEEN 1 AND 9007199254740991
      THEN RAISE(ABORT, 'outbox: id is out of range; leave it to its default')
    WHEN NEW.id <> -1
         AND EXISTS (SELECT 1 FROM outbox AS o
                      WHERE o.id = NEW.id
                        AND (o.channel, o.dedupe_key, o.ordering_key)
                            IS NOT (NEW.channel, NEW.dedupe_key, NEW.ordering_key))
      THEN RAISE(ABORT, 'outbox: id belongs to another message; leave it to its default')
    ELSE EXISTS (SELECT 1 FROM outbox AS o
                  WHERE o.channel = NEW.channel AND o.dedupe_key = NEW.dedupe_key)
  END
BEGIN
  -- REPLACE may remove the holder, and nothing tells of it.
  DELETE FROM outbox_census
   WHERE block = (SELECT (o.id - 1) >> 10 FROM outbox AS o
                   WHERE o.channel = NEW.channel AND o.dedupe_key = NEW.dedupe_key);
  INSERT INTO outbox_conflict (message, message_ordering_key, channel, dedupe_key,
                               event_type, recipient, ordering_key, principal,
                               content_type, headers, available_at, expires_at, payload)
  SELECT o.id, o.ordering_key, NEW.channel, NEW.dedupe_key,
         NEW.event_type, NEW.recipient, NEW.ordering_key, NEW.principal,
         NEW.content_type, NEW.headers, NEW.available_at, NEW.expires_at, NEW.payload
    FROM outbox AS o
   WHERE o.channel = NEW.channel AND o.dedupe_key = NEW.dedupe_key
     AND ((o.event_type, o.recipient, o.ordering_key, o.principal,
           o.content_type, o.headers, o.available_at, o.expires_at)
          IS NOT (NEW.event_type, NEW.recipient, NEW.ordering_key, NEW.principal,
                  NEW.content_type, NEW.headers, NEW.available_at, NEW.expires_at)
          OR CAST(o.payload AS BLOB) <> CAST(NEW.payload AS BLOB)
             AND NOT (length(o.payload) = 0
                      AND (o.status = 'sent' OR o.status = 'expired' OR o.status = 'cancelled')))
     AND NOT EXISTS (SELECT 1 FROM outbox_conflict AS k
                      WHERE k.channel = NEW.channel AND k.dedupe_key = NEW.dedupe_key
                        AND k.message = o.id
                        AND (k.event_type, k.recipient, k.ordering_key, k.principal,
                             k.content_type, k.headers, k.available_at, k.expires_at)
                            IS (NEW.event_type, NEW.recipient, NEW.ordering_key, NEW.principal,
                                NEW.content_type, NEW.headers, NEW.available_at, NEW.expires_at)
                        AND CAST(k.payload AS BLOB) = CAST(NEW.payload AS BLOB));
END;

-- A conflict is over once its content is what the key's holder says. Inserting
-- that holder's id into this view removes such conflicts.
--
-- INSERT OR REPLACE removes the message that held the key, and by default no
-- delete trigger hears of it. The conflict keeper has noted that message; so
-- its lane is put in order here, and its attempts go.
CREATE VIEW IF NOT EXISTS outbox_conflict_procedure (message) AS
  SELECT NULL WHERE 0;

CREATE TRIGGER IF NOT EXISTS outbox_conflict_over
INSTEAD OF INSERT ON outbox_conflict_procedure
WHEN EXISTS (SELECT 1
               FROM outbox AS o
               JOIN outbox_conflict AS k
                 ON k.channel = o.channel AND k.dedupe_key = o.dedupe_key
              WHERE o.id = NEW.message)
BEGIN
  INSERT INTO outbox_lane_procedure (channel, ordering_key)
  SELECT DISTINCT k.channel, k.message_ordering_key
    FROM outbox AS o
    JOIN outbox_conflict AS k
      ON k.channel = o.channel AND k.dedupe_key = o.dedupe_key
   WHERE o.id = NEW.message AND k.message <> o.id;
  DELETE FROM outbox_attempt
   WHERE message IN (SELECT k.message
                       FROM outbox AS o
                       JOIN outbox_conflict AS k
                         ON k.channel = o.channel AND k.dedupe_key = o.dedupe_key
                      WHERE o.id = NEW.message AND k.message <> o.id)
     AND NOT EXISTS (SELECT 1 FROM outbox AS o WHERE o.id = outbox_attempt.message);
  DELETE FROM outbox_conflict
   WHERE id IN (SELECT k.id
                  FROM outbox AS o
                  JOIN outbox_conflict AS k
                    ON k.channel = o.channel AND k.dedupe_key = o.dedupe_key
                 WHERE o.id = NEW.message
                   AND (k.event_type, k.recipient, k.ordering_key, k.principal,
                        k.content_type, k.headers, k.available_at, k.expires_at)
                       IS (o.event_type, o.recipient, o.ordering_key, o.principal,
                           o.content_type, o.headers, o.available_at, o.expires_at)
                   AND CAST(k.payload AS BLOB) = CAST(o.payload AS BLOB));
END;

-- ON CONFLICT DO UPDATE, or a person's edit, may give the key's holder the
-- content that was in conflict with it.
CREATE TRIGGER IF NOT EXISTS outbox_rewritten
AFTER UPDATE OF event_type, recipient, principal, content_type, headers,
                available_at, expires_at, payload ON outbox
WHEN EXISTS (SELECT 1 FROM outbox_conflict AS k
              WHERE k.channel = NEW.channel AND k.dedupe_key = NEW.dedupe_key)
BEGIN
  INSERT INTO outbox_conflict_procedure (message) VALUES (NEW.id);
END;

-- A new message takes its place in its lane. Nothing is to be done for one that
-- comes 'pending' and alone, nor for one that comes 'waiting' behind a head.
--
-- One with a moment is claimed by its due time, so that looking for fresh ones
-- need not step over it. And it may end conflicts over its key.
--
-- The last id of a block completes it: then the block is counted. A message
-- that comes into one that was counted before makes the number worthless.
--
-- All in one trigger, as each costs every row its start.
CREATE TRIGGER IF NOT EXISTS outbox_inserted
AFTER INSERT ON outbox
WHEN NEW.ordering_key IS NOT NULL
     AND CASE NEW.status
           WHEN 'pending' THEN
                EXISTS (SELECT 1 FROM outbox AS o
                        WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                          AND (o.status = 'pending' OR o.status = 'waiting'
                               OR o.status = 'sending' OR o.status = 'dead')
                          AND o.id <> NEW.id)
           WHEN 'waiting' THEN
                NOT EXISTS (SELECT 1 FROM outbox AS o
                            WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                              AND o.status = 'pending' AND o.id < NEW.id)
            AND NOT EXISTS (SELECT 1 FROM outbox AS o
                            WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                              AND o.status = 'sending')
           WHEN 'sending' THEN
                EXISTS (SELECT 1 FROM outbox AS o
                        WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                          AND o.status = 'pending')
           WHEN 'dead' THEN 1
           -- Settled already: it may have replaced the head.
           ELSE EXISTS (SELECT 1 FROM outbox AS o
                        WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                          AND o.status = 'waiting')
         END
  OR NEW.available_at > NEW.next_attempt_at
  OR EXISTS (SELECT 1 FROM outbox_conflict AS k
              WHERE k.channel = NEW.channel AND k.dedupe_key = NEW.dedupe_key)
  OR NEW.id % 1024 = 0
  OR EXISTS (SELECT 1 FROM outbox_census WHERE block = (NEW.id - 1) >> 10)
BEGIN
  DELETE FROM outbox_census WHERE block = (NEW.id - 1) >> 10;
  INSERT INTO outbox_conflict_procedure (message) VALUES (NEW.id);
  INSERT INTO outbox_lane_procedure (channel, ordering_key)
  VALUES (NEW.channel, NEW.ordering_key);
  UPDATE outbox SET next_attempt_at = NEW.available_at
   WHERE id = NEW.id AND NEW.available_at > NEW.next_attempt_at
     AND NEW.status IN ('pending', 'waiting');
  INSERT INTO outbox_census (block, unsent)
  SELECT (NEW.id - 1) >> 10,
         (SELECT count(*) FROM outbox AS o
           WHERE o.id > NEW.id - 1024 AND o.id <= NEW.id
             AND (o.status = 'pending' OR o.status = 'waiting' OR o.status = 'sending'))
   WHERE NEW.id % 1024 = 0;
END;

-- A message that changed its status may free its lane or hold it. Left out are
-- the changes that can do neither: a claim where no other is pending, a
-- demotion where another is pending, a follower that leaves from behind, one
-- settled state becoming another, and the last of a lane that settles.
CREATE TRIGGER IF NOT EXISTS outbox_status_changed
AFTER UPDATE OF status ON outbox
WHEN NEW.ordering_key IS NOT NULL AND NEW.status <> OLD.status
 AND NOT (OLD.status = 'waiting'
          AND (NEW.status = 'sent' OR NEW.status = 'dead'
               OR NEW.status = 'expired' OR NEW.status = 'cancelled'))
 AND NOT ((OLD.status = 'sent' OR OLD.status = 'expired' OR OLD.status = 'cancelled')
          AND (NEW.status = 'sent' OR NEW.status = 'expired' OR NEW.status = 'cancelled'))
 AND CASE
       WHEN NEW.status = 'sending' THEN
            EXISTS (SELECT 1 FROM outbox AS o
                     WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                       AND o.status = 'pending')
       WHEN NEW.status = 'sent' OR NEW.status = 'expired' OR NEW.status = 'cancelled' THEN
            EXISTS (SELECT 1 FROM outbox AS o
                     WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                       AND o.status = 'waiting')
       ELSE 1
     END
 AND NOT (OLD.status = 'pending' AND NEW.status = 'waiting'
          AND EXISTS (SELECT 1 FROM outbox AS o
                       WHERE o.channel = NEW.channel AND o.ordering_key = NEW.ordering_key
                         AND o.status = 'pending'))
BEGIN
  INSERT INTO outbox_lane_procedure (channel, ordering_key)
  VALUES (NEW.channel, NEW.ordering_key);
END;

CREATE TRIGGER IF NOT EXISTS outbox_counted
AFTER UPDATE OF status ON outbox
WHEN (OLD.status = 'pending' OR OLD.status = 'waiting' OR OLD.status = 'sending')
  <> (NEW.status = 'pending' OR NEW.status = 'waiting' OR NEW.status = 'sending')
BEGIN
  UPDATE outbox_census
     SET unsent = unsent
                + (NEW.status = 'pending' OR NEW.status = 'waiting' OR NEW.status = 'sending')
                - (OLD.status = 'pending' OR OLD.status = 'waiting' OR OLD.status = 'sending')
   WHERE block = (NEW.id - 1) >> 10;
END;

-- So may one that is deleted. A follower leaves its lane as it was.
CREATE TRIGGER IF NOT EXISTS outbox_deleted
AFTER DELETE ON outbox
WHEN OLD.ordering_key IS NOT NULL
 AND (OLD.status = 'pending' OR OLD.status = 'sending' OR OLD.status = 'dead')
BEGIN
  INSERT INTO outbox_lane_procedure (channel, ordering_key)
  VALUES (OLD.channel, OLD.ordering_key);
END;

-- The record of its attempts goes with a message, and it counts no more.
CREATE TRIGGER IF NOT EXISTS outbox_deleted_attempts
AFTER DELETE ON outbox
BEGIN
  DELETE FROM outbox_attempt WHERE message = OLD.id;
  UPDATE outbox_census SET unsent = unsent - 1
   WHERE block = (OLD.id - 1) >> 10
     AND (OLD.status = 'pending' OR OLD.status = 'waiting' OR OLD.status = 'sending');
END;

-- UPDATE OR REPLACE removes the message that has the key.
CREATE TRIGGER IF NOT EXISTS outbox_rekeyed
BEFORE UPDATE OF dedupe_key ON outbox
WHEN NEW.dedupe_key IS NOT OLD.dedupe_key
BEGIN
  DELETE FROM outbox_census
   WHERE block = (SELECT (o.id - 1) >> 10 FROM outbox AS o
                   WHERE o.channel = NEW.channel AND o.dedupe_key = NEW.dedupe_key);
END;

-- A message keeps its place: what was promised about order rests on it.
CREATE TRIGGER IF NOT EXISTS outbox_place
BEFORE UPDATE OF id, channel, ordering_key ON outbox
WHEN NEW.id <> OLD.id OR NEW.channel IS NOT OLD.channel OR NEW.ordering_key IS NOT OLD.ordering_key
BEGIN
  SELECT RAISE(ABORT, 'outbox: id, channel and ordering_key of a message never change');
END;

-- The due time follows when the moment of a message that was never claimed is
-- changed.
CREATE TRIGGER IF NOT EXISTS outbox_rescheduled
AFTER UPDATE OF available_at ON outbox
WHEN NEW.claims = 0 AND NEW.status IN ('pending', 'waiting')
 AND (NEW.available_at > NEW.next_attempt_at OR NEW.next_attempt_at = OLD.available_at)
BEGIN
  UPDATE outbox SET next_attempt_at = max(coalesce(NEW.available_at, 0), 0) WHERE id = NEW.id;
END;

-- For people: every channel, what it holds, and how it stands.
CREATE VIEW IF NOT EXISTS outbox_status AS
WITH RECURSIVE
  used (channel) AS (
    SELECT min(channel) FROM outbox
    UNION ALL
    SELECT (SELECT min(o.channel) FROM outbox AS o WHERE o.channel > used.channel)
      FROM used WHERE used.channel IS NOT NULL
  ),
  known (channel) AS (
    SELECT channel FROM used WHERE channel IS NOT NULL
    UNION
    SELECT channel FROM outbox_channel
  ),
  counted AS (
    SELECT k.channel,
      (SELECT count(*) FROM outbox AS o
        WHERE o.channel = k.channel AND o.status = 'pending') AS pending,
      (SELECT count(*) FROM outbox AS o
        WHERE o.channel = k.channel AND o.ordering_key IS NOT NULL AND o.status = 'waiting') AS waiting,
      (SELECT count(*) FROM outbox AS o
        WHERE o.channel = k.channel AND o.status = 'sending') AS sending,
      (SELECT count(*) FROM outbox AS o
        WHERE o.channel = k.channel AND o.status = 'sent') AS sent,
      (SELECT count(*) FROM outbox AS o
        WHERE o.channel = k.channel AND o.status = 'dead') AS dead,
      (SELECT count(*) FROM outbox AS o
        WHERE o.channel = k.channel AND o.status = 'expired') AS expired,
      (SELECT count(*) FROM outbox AS o
        WHERE o.channel = k.channel AND o.status = 'cancelled') AS cancelled,
      (SELECT created_at FROM outbox WHERE id =
        (SELECT min(first.id) FROM (
           SELECT min(o.id) AS id FROM outbox AS o
            WHERE o.channel = k.channel AND o.status = 'pending'
           UNION ALL
           SELECT min(o.id) FROM outbox AS o
            WHERE o.channel = k.channel AND o.status = 'sending'
           UNION ALL
           SELECT min(o.id) FROM outbox AS o
            WHERE o.channel = k.channel AND o.ordering_key IS NOT NULL AND o.status = 'waiting'
         ) AS first)) AS oldest_unsent
      FROM known AS k
  )
SELECT n.channel, n.pending, n.waiting, n.sending, n.sent, n.dead, n.expired, n.cancelled,
       n.pending + n.waiting + n.sending AS unsent,
       n.oldest_unsent,
       datetime(n.oldest_unsent / 1000, 'unixepoch') AS oldest_unsent_utc,
       coalesce(c.state, 'ok') AS state,
       datetime(c.since / 1000, 'unixepoch') AS since_utc,
       c.reason,
       c.paused_at IS NOT NULL AS paused,
       c.pause_reason
  FROM counted AS n
  LEFT JOIN outbox_channel AS c ON c.channel = n.channel;

-- For people: the dead letters, with times to read.
CREATE VIEW IF NOT EXISTS outbox_dead AS
SELECT id, channel, dedupe_key, event_type, recipient, ordering_key, attempts,
       datetime(created_at / 1000, 'unixepoch') AS created_utc,
       datetime(last_attempt_at / 1000, 'unixepoch') AS last_attempt_utc,
       datetime(settled_at / 1000, 'unixepoch') AS dead_since_utc,
       last_error, answer, message_id
  FROM outbox
 WHERE status = 'dead';

INSERT OR IGNORE INTO outbox_meta (key, value) VALUES
  ('schema_version', '1'),
  ('min_writer', '1'),
  ('instance_id', lower(hex(randomblob(16))));
