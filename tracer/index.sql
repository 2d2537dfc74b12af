-- Made after the rows are in: a sorted load is several times faster than keeping an index up to date.
CREATE INDEX event_time ON event (track, start);
CREATE INDEX message_flag ON message (peer, flag, epoch);
CREATE INDEX message_ns ON message (ns);
CREATE INDEX message_time ON message (rank, posted);
CREATE INDEX track_parent ON track (parent);
CREATE INDEX edge_message ON edge (message) WHERE message IS NOT NULL;
CREATE INDEX edge_producer ON edge (producer);
CREATE INDEX message_command ON message (command_event);
CREATE INDEX track_role ON track (rank, role);
CREATE INDEX launch_rank_rank ON launch_rank (rank, start, end);
