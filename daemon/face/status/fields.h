/*
 * fields.h - every field of every answer, once: name, kind, unit and meaning (record.h).
 *
 * Numbers whose name ends in _s are seconds.  Counters start with the daemon, or when the job comes
 * to this node.  The other files of this folder fill the records.
 */
#pragma once

#include "daemon/face/status/record.h"

/* clang-format off */

/* ---- jobs ---- */

#define STATUS_RANK(F, R)                                                                          \
        F(number, rank, "number")                                                                  \
        F(text, node, "node that the rank runs on; null: not known")                               \
        F(flag, attached, "the rank has a session")

#define STATUS_WAIT(F, R)                                                                          \
        R(called, "for", who, "the rank, node or disk that keeps others waiting")                  \
        F(text, what, "what that rank, node or disk has to do")                                    \
        F(real, since_s, "time since its last sign of progress")

#define STATUS_GATHER(F, R)                                                                        \
        F(number, window_bytes, "bytes reserved for the windows that ranks of this node read",      \
          GAUGE("gather_window_bytes"))                                                            \
        F(text, place, "place of the windows: host, or GPUs")                                      \
        F(number, slots, "groups that the windows hold at once", GAUGE("gather_window_groups"))    \
        F(number, hits, "fetches that found their group in the window",                            \
          COUNTER("gather_hits_total"))                                                            \
        F(number, misses, "fetches that did not find it there", COUNTER("gather_misses_total"))    \
        F(number, gathers, "groups brought into a window", COUNTER("gathers_total"))               \
        F(number, spread, "groups brought from another window of this node",                       \
          COUNTER("gather_spread_groups_total"))                                                   \
        F(number, elements_received, "elements from other nodes",                                  \
          COUNTER("gather_received_elements_total"))                                               \
        F(number, forwarded, "owners' slices that came by deltas, for readers",                    \
          COUNTER("gather_forwarded_slices_total"))                                                \
        F(number, delta_bytes_received, "bytes of deltas from other nodes",                        \
          COUNTER("gather_received_delta_bytes_total"))

#define STATUS_READERS(F, R)                                                                       \
        F(number, clients, "clients that follow the job on this node", GAUGE("readers"))           \
        F(number, copies, "versions of the parameters in memory for them",                         \
          GAUGE("reader_copies"))                                                                  \
        F(number, held, "versions that somebody holds", GAUGE("reader_held_copies"))               \
        F(number, bytes, "bytes of these copies", GAUGE("reader_bytes"))                           \
        F(number, delta_bytes, "bytes of deltas between versions, for readers of any node",        \
          GAUGE("reader_delta_bytes"))                                                             \
        F(number, version, "newest whole version among them; null: none",                          \
          GAUGE("reader_version"))

#define STATUS_READER(F, R)                                                                        \
        F(number, uid, "user")                                                                     \
        F(number, pid, "process; null: the reader reads over HTTP")                                \
        F(text, address, "address over HTTP; null: the reader is a process of the node")           \
        F(flag, waits, "it waits for a version")                                                   \
        F(numbers, versions, "versions that it holds")

#define STATUS_COPY(F, R)                                                                          \
        F(number, version, "version in the copy; null: it is empty, or the version is on its way") \
        F(number, bytes, "bytes of its memory")                                                    \
        F(number, readers, "clients that hold it")                                                 \
        F(text, form, "its groups, and dtypes that differ from theirs; null: all as ranks fetch "  \
                      "them")

/* What one node tells the others. */
#define STATUS_VERSIONS_HERE(F, R)                                                                 \
        F(text, node, "name")                                                                      \
        F(number, newest, "newest whole version among the copies; null: none")                     \
        R(list, status_reader, readers, "clients that follow the job on the node")                 \
        F(number, left_out, "more of them, which are not told")                                    \
        R(list, status_copy, copies, "copies of versions that are in memory")

#define STATUS_VERSIONS(F, R)                                                                      \
        F(text, job, "name")                                                                       \
        F(number, version, "steps made")                                                           \
        F(numbers, users, "users whom the owner lets follow the job")                              \
        R(list, status_versions_here, nodes, "nodes of the job that answered")                     \
        F(texts, away, "nodes that are not up, and may have readers")

#define STATUS_GRANTS(F, R)                                                                        \
        F(text, job, "name")                                                                       \
        F(numbers, users, "users whom the owner lets follow the job")

#define STATUS_REDUCE(F, R)                                                                        \
        F(number, elements_sent, "elements of gradients, to other nodes",                          \
          COUNTER("reduce_sent_elements_total"))                                                   \
        F(number, deferred, "sums of groups that the update computed itself",                      \
          COUNTER("reduce_deferred_sums_total"))

#define STATUS_STASH(F, R)                                                                         \
        F(text, place, "where the memory is, such as host or GPU 0")                               \
        F(number, reserved, "bytes of memory for activation checkpoints on this node",             \
          GAUGE("stash_reserved_bytes"))                                                           \
        F(number, used, "bytes in use", GAUGE("stash_used_bytes"))                                 \
        F(number, assembled, "bytes in use of entries put together from several nodes, to be read",\
          GAUGE("stash_assembled_bytes"))                                                          \
        F(number, peak, "most bytes in use at once", GAUGE("stash_peak_bytes"))                    \
        F(number, received, "bytes from other nodes", COUNTER("stash_received_bytes_total"))

#define STATUS_FORMULA(F, R)                                                                       \
        F(number, bytes_per_parameter, "16 with two moments (ZeRO, SC20, section 3.1)",            \
          GAUGE("formula_bytes_per_parameter"))                                                    \
        F(number, stage3_bytes, "bytes that one owner holds", GAUGE("formula_stage3_bytes"))

#define STATUS_SESSION(F, R)                                                                       \
        F(number, rank, "number")                                                                  \
        F(number, pid, "process")                                                                  \
        F(number, held, "groups that the rank holds")                                              \
        F(flag, no_events, "zerod waits for the rank's GPU work without events")                   \
        F(flag, stash_unpinned, "the rank's copies to its stash wait for its GPU")                 \
        F(number, push_window, "bytes reserved for the rank's push window")                        \
        F(number, push_slots, "groups whose gradients fit there at once")

#define STATUS_MOVE(F, R)                                                                          \
        F(number, from_epoch, "epoch that shards come from; null: not known")                      \
        F(number, to_epoch, "epoch of the owner list in force", GAUGE("move_epoch"))               \
        F(number, bytes, "bytes that are in their new place", GAUGE("move_done_bytes"))            \
        F(number, total, "bytes in total; 0: not known", GAUGE("move_all_bytes"))

#define STATUS_CHECKPOINT(F, R)                                                                    \
        F(number, version, "version of the job in the checkpoint", GAUGE("checkpoint_version"))    \
        F(real, age_s, "time since it ended; null: it is being written, or has failed",            \
          GAUGE("checkpoint_age_seconds"))                                                         \
        F(real, took_s, "time from the order to the end; null: it is being written",               \
          GAUGE("checkpoint_duration_seconds"))                                                    \
        F(number, bytes, "bytes of all parts; 0: not known yet", GAUGE("checkpoint_all_bytes"))    \
        F(number, done_bytes, "bytes written", GAUGE("checkpoint_done_bytes"))                     \
        F(text, error, "reason of the failure; null: none")                                        \
        F(flag, failed, "it has failed", GAUGE("checkpoint_failed"))

/* Periodic checkpoints. */
#define STATUS_SCHEDULE(F, R)                                                                      \
        F(number, every, "steps between two periodic checkpoints", GAUGE("checkpoint_every_steps"))\
        F(number, next_version, "version of the job in the next periodic checkpoint",              \
          GAUGE("checkpoint_next_version"))                                                        \
        F(text, periodic_directory, "directory of periodic checkpoints; null: others read this")   \
        F(number, last_version, "version of the job in the newest of them; until there is one, "   \
          "when it was ordered", GAUGE("checkpoint_last_version"))                                 \
        F(number, last_unix_s, "when the newest was written; until there is one, the order's time",\
          GAUGE("checkpoint_last_timestamp_seconds"))

/* Waits of one kind that have ended. */
#define STATUS_WAITED(F, R)                                                                        \
        R(called, "for", what, "fetch, push, step: a rank's call; vote: an owner's, once it is "   \
          "asked for; update: an owner's, after the decision")                                     \
        F(number, n, "number of them")                                                             \
        F(real, sum_s, "time of all of them")                                                      \
        F(counts, at_most, "number of them that took at most so many seconds; the last: longer")

/* Ranks of this node that say they run in the same Slurm job and pod. */
#define STATUS_ORIGIN(F, R)                                                                        \
        F(text, slurm_job, "SLURM_JOB_ID of the ranks; null: not set", LABEL("slurm_job"))         \
        F(text, pod, "POD_NAME of the ranks; null: not set", LABEL("pod"))                         \
        F(number, ranks, "ranks of this node that run there", GAUGE("job_origin_ranks"))

#define STATUS_JOB(F, R)                                                                           \
        F(text, job, "name", LABEL("job"))                                                         \
        F(number, uid, "user who owns the job", LABEL("user"))                                     \
        F(text, coordinator, "node that coordinates the job", INFO("job_coordinator_info"))        \
        F(number, world_size, "ranks", GAUGE("job_ranks"))                                         \
        R(list, status_rank, ranks, "all, in order")                                               \
        F(text, state, "moving, opening, idle, incomplete, stalled (all ranks are attached, and "  \
          "no step ends) or running", INFO("job_state_info"))                                      \
        F(number, version, "steps made", COUNTER("job_steps_total"))                               \
        F(number, attempt, "number of the attempt at the next step",                               \
          COUNTER("job_attempts_total"))                                                           \
        F(real, steps_per_s, "rate over the last steps; 0 unless the job is running",              \
          GAUGE("job_steps_per_second"))                                                           \
        F(real, grad_norm, "norm of the last step's gradients; null: not finite",                  \
          GAUGE("job_grad_norm"))                                                                  \
        F(real, loss_scale, "loss scale of the next step", GAUGE("job_loss_scale"))                \
        F(number, skipped, "steps whose gradients were not finite",                                \
          COUNTER("job_skipped_steps_total"))                                                      \
        F(number, skipped_in_a_row, "steps skipped since the last one that was not",               \
          GAUGE("job_skipped_steps_in_a_row"))                                                     \
        F(real, step_age_s, "time since the last step ended; null: none has",                      \
          GAUGE("job_step_age_seconds"))                                                           \
        F(number, last_step_unix_s, "when the last step was decided, as the states here keep it; " \
          "null: not known, as before all nodes spoke messages of version 10",                     \
          GAUGE("job_last_step_timestamp_seconds"))                                                \
        F(number, aborts, "attempts at a step that were given up", COUNTER("job_aborts_total"))    \
        F(number, away, "ranks that have no session: lost, or not there yet",                      \
          GAUGE("job_away_ranks"))                                                                 \
        F(flag, whole, "this node has all shards and mirrors that the owner list gives it",        \
          GAUGE("job_whole"))                                                                      \
        R(list, status_waited, waited, "how long calls, votes and updates took here",              \
          HISTOGRAM("wait_seconds"))                                                               \
        F(number, parameters, "elements of all groups", GAUGE("job_parameters"))                   \
        F(number, groups, "number of groups", GAUGE("job_groups"))                                 \
        F(text, accumulate, "sums of gradients: fp32, or wire, in the dtype between nodes")        \
        F(texts, formats, "formats of moments and of master weights, \"8bit,bf16+8\", of "       \
          "groups that are not all in fp32; each once")                                            \
        F(texts, owners, "node of each owner of shards")                                           \
        R(maybe, status_move, move, "move of the job's shards; null: all are in their place")      \
        R(maybe, status_checkpoint, checkpoint, "newest; null: none, or not coordinated here")     \
        R(maybe, status_schedule, schedule, "periodic checkpoints; null: none")                    \
        R(list, status_wait, waiting, "who keeps the job waiting; not who only waits for a node "  \
          "that is named already", GAUGE("job_waits"))                                             \
        F(real, longest_rank_wait_s, "longest of these waits for a rank; null: none",              \
          GAUGE("job_rank_wait_seconds"))                                                          \
        F(real, longest_other_wait_s, "longest of these waits for a node, disk or person; null: "  \
          "none", GAUGE("job_node_wait_seconds"))                                                  \
        R(record, status_gather, gather, "parameters on their way to ranks")                       \
        R(maybe, status_readers, readers, "versions for clients; null: nobody follows")      \
        R(record, status_reduce, reduce, "gradients on their way to owners")                       \
        R(maybe, status_stash, stash, "activation checkpoints; null: no rank stashes here")         \
        F(counts, planes, "bytes of each plane on this node", GAUGE("job_plane_bytes"))            \
        F(number, planes_on_gpu, "bytes of planes in GPU memory", GAUGE("job_gpu_plane_bytes"))    \
        R(record, status_formula, zero_formula, "what the paper predicts")                         \
        F(number, push_windows, "bytes of the push windows of this node's ranks",                  \
          GAUGE("job_push_window_bytes"))                                                          \
        R(list, status_origin, origins, "where this node's ranks run")                             \
        R(list, status_session, sessions, "sessions of this node's ranks", GAUGE("job_sessions"))

#define STATUS_JOBS(F, R)                                                                          \
        R(list, status_job, jobs, "jobs that this node knows")

/* ---- the node ---- */

#define STATUS_PEER(F, R)                                                                          \
        F(text, node, "name", LABEL("peer"))                                                       \
        F(text, address, "host and port")                                                          \
        F(flag, owner, "it holds shards", GAUGE("peer_owner"))                                     \
        F(flag, self, "it is the node that answers")                                               \
        F(flag, up, "the link to it stands", GAUGE("peer_up"))                                     \
        F(flag, reached, "another node says that its link to it stands")                           \
        F(text, why, "reason why the link is down")                                                \
        F(text, goodbye, "stopped or drained: it is gone after it said that it stops in order; "   \
          "null: it is up, or said nothing", INFO("peer_goodbye_info"))                            \
        F(text, bulk, "path of payloads", INFO("peer_bulk_info"))                                  \
        F(text, bulk_detail, "transports of that path")                                            \
        F(text, bulk_gpu, "path of payloads in GPU memory: direct or staged",                      \
          INFO("peer_bulk_gpu_info"))                                                              \
        F(real, since_s, "time since the link came up or went down",                               \
          GAUGE("peer_link_age_seconds"))                                                          \
        F(real, heard_s, "time since its last message", GAUGE("peer_heard_age_seconds"))           \
        F(real, round_trip_s, "round trip of the last heartbeat",                                  \
          GAUGE("peer_round_trip_seconds"))                                                        \
        F(number, speaks, "version of the messages on the last link; 0: none yet",                 \
          GAUGE("peer_message_version"))                                                           \
        F(counts, sent, "bytes by kind of traffic", COUNTER("peer_sent_bytes_total"))              \
        F(counts, received, "bytes by kind of traffic", COUNTER("peer_received_bytes_total"))      \
        F(counts, messages, "sent messages by kind, as in proto/zero.proto; answer: without a body",\
          COUNTER("peer_sent_messages_total"))

#define STATUS_ATTACHING(F, R)                                                                     \
        F(text, job, "job that the rank attaches to")                                              \
        F(number, rank, "number")                                                                  \
        F(number, pid, "process")                                                                  \
        R(called, "for", who, "who keeps the rank waiting")                                        \
        F(text, what, "what that node or rank has to do")                                          \
        F(real, since_s, "how long the rank has waited")

#define STATUS_MEMORY(F, R)                                                                        \
        F(number, state_used, "bytes that count towards memory_limit", GAUGE("state_used_bytes"))  \
        F(number, state_quota, "bytes of memory_limit", GAUGE("state_quota_bytes"))                \
        F(number, resident, "bytes of the daemon's process",                                       \
          PROCESS_GAUGE("resident_memory_bytes"))                                                  \
        F(number, address_space, "bytes of its address space",                                     \
          PROCESS_GAUGE("virtual_memory_bytes"))                                                   \
        F(number, file_system, "bytes of the file system of state_dir; null: not known",           \
          GAUGE("state_file_system_bytes"))                                                        \
        F(number, file_system_free, "bytes of it that are free; null: not known",                  \
          GAUGE("state_file_system_free_bytes"))

#define STATUS_BASE(F, R)                                                                          \
        F(text, hash, "BLAKE2b of the bytes, 32 bytes in hexadecimal", LABEL("base"))              \
        F(number, uid, "user whose processes read it", LABEL("user"))                              \
        F(number, bytes, "size", GAUGE("base_bytes"))                                              \
        F(number, uses, "processes that use it", GAUGE("base_processes"))                          \
        F(number, gpus, "GPUs that have a copy, too", GAUGE("base_gpus"))                          \
        F(flag, whole, "the copy is complete, and its hash was checked", GAUGE("base_whole"))      \
        F(number, filler, "process that writes it; 0: none")

#define STATUS_COLLECTIVES(F, R)                                                                   \
        F(text, by, "nccl or copies")                                                              \
        F(text, nccl, "version of NCCL; null: not loaded")                                         \
        F(number, moves_by_nccl, "collectives that NCCL has carried",                              \
          COUNTER("nccl_collectives_total"))                                                       \
        F(text, why, "reason why NCCL is not used; null: it is, or an option says so")

#define STATUS_CUDA(F, R)                                                                          \
        F(number, plugin_interface, "version")                                                     \
        F(text, driver, "version of CUDA", INFO("cuda_driver_info"))                               \
        F(text, runtime, "version of CUDA", INFO("cuda_runtime_info"))                             \
        R(maybe, status_collectives, between_gpus, "null: there is only one GPU")

#define STATUS_GPU_MEMORY(F, R)                                                                    \
        F(number, total, "bytes", GAUGE("gpu_memory_bytes"))                                       \
        F(number, free, "bytes", GAUGE("gpu_memory_free_bytes"))                                   \
        F(number, used, "bytes used by all processes", GAUGE("gpu_memory_used_bytes"))             \
        F(number, zerod, "bytes used by this daemon", GAUGE("gpu_memory_zerod_bytes"))

#define STATUS_ALLOCATION(F, R)                                                                    \
        F(text, what, "purpose", LABEL("kind"))                                                    \
        F(number, bytes, "bytes for that purpose", GAUGE("gpu_allocation_bytes"))

#define STATUS_GPU(F, R)                                                                           \
        F(number, gpu, "number", LABEL("gpu"))                                                     \
        F(text, name, "model")                                                                     \
        F(text, uuid, "as nvidia-smi writes it")                                                   \
        F(text, compute_capability, "major and minor")                                             \
        R(record, status_gpu_memory, memory, "memory of the GPU")                                  \
        R(list, status_allocation, allocations, "allocations of this daemon")

/* Of zeroctl doctor, or of a verdict. */
#define STATUS_FINDING(F, R)                                                                       \
        F(text, check, "what was looked at; in a verdict, the alert of this name")                 \
        F(text, state, "fine, warning or error")                                                   \
        F(text, found, "what is there")                                                            \
        F(text, advice, "what to do; empty: nothing")

#define STATUS_NODE(F, R)                                                                          \
        F(text, verdict, "ok, warn or error: the worst of the findings")                           \
        R(list, status_finding, findings, "what is wrong with the node, its peers and its jobs: "  \
          "what the alerts of deploy/prometheus/ say, as far as one node knows and without delay") \
        F(text, node, "name", LABEL("node"))                                                       \
        F(text, version, "version of zerod", INFO("build_info"))                                   \
        F(number, protocol, "version of the protocol of clients", GAUGE("client_protocol_version"))\
        F(real, loop_cpu_s, "CPU time of the event loop's thread",                                 \
          COUNTER("loop_cpu_seconds_total"))                                                       \
        F(real, cpu_s, "CPU time of all threads", PROCESS_COUNTER("cpu_seconds_total"))            \
        F(real, started_unix_s, "when the process began, since 1970",                              \
          PROCESS_GAUGE("start_time_seconds"))                                                     \
        F(number, open_files, "file descriptors in use", PROCESS_GAUGE("open_fds"))                \
        F(number, max_files, "how many of them the process may have; null: no limit",              \
          PROCESS_GAUGE("max_fds"))                                                                \
        F(real, uptime_s, "since the socket was opened", GAUGE("uptime_seconds"))                  \
        F(text, socket, "path of the clients' socket")                                             \
        F(text, state_dir, "directory of state files")                                             \
        F(flag, drained, "it takes no new ranks", GAUGE("drained"))                                \
        F(text, device, "instruction set that kernels use", INFO("kernels_info"))                  \
        R(list, status_peer, peers, "all nodes of the cluster, this one included")                 \
        R(list, status_job, jobs, "jobs that this node knows")                                     \
        R(list, status_attaching, attaching, "ranks of this node whose job is not open yet",       \
          GAUGE("attaching_ranks"))                                                                \
        R(list, status_base, bases, "frozen weights that jobs share", GAUGE("bases"))              \
        R(record, status_memory, memory, "memory of the node")                                     \
        R(maybe, status_cuda, cuda, "null: no GPU is used")                                        \
        R(list, status_gpu, gpus, "GPUs in use")

#define STATUS_OPTION(F, R)                                                                        \
        F(text, name, "name")                                                                      \
        F(text, value, "value in force")                                                           \
        F(text, source, "where the value comes from")                                              \
        F(text, doc, "what it means")

#define STATUS_CONFIG(F, R)                                                                        \
        R(list, status_option, options, "all, in order")

/* ---- shards ---- */

/* What an owner holds on the node that answers. */
#define STATUS_REPLICA(F, R)                                                                       \
        F(number, owner, "the owner's number in the owner list")                                   \
        F(numbers, versions, "version of each group; null: the owner has no part of it")           \
        F(numbers, updates, "last version that changed each group; null: none since a restart")    \
        F(text, place, "host, or the GPU")

#define STATUS_REPLICAS(F, R)                                                                      \
        R(list, status_replica, replicas, "replicas of one job on the node")

#define STATUS_SHARD(F, R)                                                                         \
        F(text, owner, "node that holds the shard")                                                \
        F(number, device, "device of that node")                                                   \
        F(number, first, "first element, in the group")                                            \
        F(number, count, "elements")                                                               \
        F(counts, bytes, "bytes of each plane")                                                    \
        F(number, version, "version of the shard; null: its node did not answer")                  \
        F(number, last_updated, "last version that changed the shard; null: not known")            \
        F(text, place, "host, or the GPU; null: its node did not answer")

#define STATUS_GROUP(F, R)                                                                         \
        F(text, group, "name")                                                                     \
        F(number, index, "number")                                                                 \
        F(number, elements, "of its tensors, gaps between them included")                          \
        F(text, dtype, "dtype that trainers fetch")                                                \
        F(text, optimizer, "optimizer that updates the group")                                     \
        F(flag, ema, "the group keeps an average of its weights")                                  \
        F(text, state, "format of moments, the average excepted: fp32, bf16 or 8bit")              \
        F(text, master, "format of master weights: fp32, bf16+16 or bf16+8")                       \
        F(texts, whole, "tensors that no owner's slice cuts")                                      \
        R(list, status_shard, shards, "shards in the order of their elements")

#define STATUS_JOB_SHARDS(F, R)                                                                    \
        F(text, job, "name")                                                                       \
        R(list, status_group, groups, "all, in order")

#define STATUS_SHARDS(F, R)                                                                        \
        R(list, status_job_shards, jobs, "the jobs asked for")

/* ---- the map of shards ---- */

/* Bands: a group, or several in a row. */
#define STATUS_OWNER_MAP(F, R)                                                                     \
        F(number, owner, "the owner's number in the owner list")                                   \
        F(text, node, "node that holds the shards")                                                \
        F(number, device, "device of that node")                                                   \
        F(number, version, "version of the job when the owner's node told; null: it has not")      \
        F(numbers, elements, "elements in each band; empty: too many groups in all jobs")          \
        F(numbers, oldest, "lowest version in each band; null: the owner has no part of it; "      \
          "empty: the owner's node has not told, or too many groups")                              \
        F(numbers, newest, "highest version in each band")

#define STATUS_JOB_MAP(F, R)                                                                       \
        F(text, job, "name")                                                                       \
        F(number, epoch, "epoch of the owner list")                                                \
        F(number, version, "version of the job")                                                   \
        F(number, groups, "number of groups")                                                      \
        F(numbers, bands, "first group of each band, of at most 64")                               \
        R(list, status_owner_map, owners, "all, in order; of what one node tells the others: its own")

#define STATUS_MAP(F, R)                                                                           \
        R(list, status_job_map, jobs, "jobs that this node knows, at most 64")

/* ---- the owner list, and moves ---- */

#define STATUS_MIRROR(F, R)                                                                        \
        F(text, owner, "the node whose shards these are")                                          \
        F(text, node, "node that holds those shards a second time")

#define STATUS_MEMBER(F, R)                                                                        \
        F(text, node, "name")                                                                      \
        F(flag, self, "it is the node that answers")                                               \
        F(flag, up, "the link to it stands")                                                       \
        F(flag, owner, "it holds shards")

#define STATUS_MEMBERSHIP(F, R)                                                                    \
        F(number, epoch, "epoch of the owner list that was chosen last")                           \
        F(texts, owners, "the node of each owner")                                                 \
        R(list, status_mirror, mirrors, "mirrors of owners")                                       \
        R(list, status_member, nodes, "all nodes of the cluster")                                  \
        F(number, votes_needed, "votes that a change needs")                                       \
        F(number, votes_reachable, "nodes that this node reaches, itself included")                \
        F(flag, majority, "enough votes are reachable")                                            \
        F(flag, voter, "this node may vote")                                                       \
        F(texts, undecided, "owners of a change that is not decided yet; null: there is none")

/* Of a rank on a drained node, which a person waits for. */
#define STATUS_DRAINED_RANK(F, R)                                                                  \
        F(text, job, "name")                                                                       \
        F(number, rank, "number")                                                                  \
        F(number, pid, "process")

#define STATUS_DRAINED(F, R)                                                                       \
        F(text, node, "name")                                                                      \
        F(flag, drained, "it takes no new ranks")                                                  \
        R(list, status_drained_rank, ranks, "its ranks whose processes run")

#define STATUS_AWAITED(F, R)                                                                       \
        R(called, "for", who, "who keeps the move waiting")                                        \
        F(text, what, "what that node or rank has to do")

#define STATUS_JOB_MOVE(F, R)                                                                      \
        R(inlined, status_move, move, "progress of the move")                                      \
        F(text, job, "name")                                                                       \
        R(maybe, status_awaited, waiting, "null: the move waits for nobody")                       \
        F(text, trouble, "problem that a person has to solve; null: none")

#define STATUS_TAKEN_BACK(F, R)                                                                    \
        F(number, epoch, "epoch that was taken back")                                              \
        F(text, why, "reason why a job could not be moved")

#define STATUS_ROOM(F, R)                                                                          \
        F(text, node, "name")                                                                      \
        F(number, used, "bytes of states, and of layouts of 1 MiB and more")                       \
        F(number, free, "bytes for more of them; null: not known")

/* What one node tells the others. */
#define STATUS_MOVES_HERE(F, R)                                                                    \
        R(list, status_job_move, moves, "moves of jobs that the node coordinates")                 \
        F(texts, old_placements, "jobs whose states of an earlier owner list the node still has")  \
        R(maybe, status_taken_back, taken_back, "null: no change was taken back")                  \
        R(maybe, status_room, room, "memory for states")

#define STATUS_MOVES(F, R)                                                                         \
        F(number, epoch, "epoch of the owner list that was chosen last")                           \
        F(flag, over, "all shards are where that list places them")                                \
        R(list, status_job_move, jobs, "jobs that still move")                                     \
        R(list, status_awaited, waiting, "nodes that keep the moves waiting")                      \
        F(texts, unheard, "nodes that did not answer")                                             \
        R(list, status_taken_back, taken_back, "changes that were taken back")                     \
        R(list, status_room, rooms, "memory of the nodes that answered")

/* ---- checkpoints ---- */

#define STATUS_OPERATION(F, R)                                                                     \
        F(text, operation, "checkpoint or restore")                                                \
        F(number, id, "number that the coordinator gave the operation")                            \
        F(text, phase, "phase")                                                                    \
        F(flag, over, "it has succeeded or failed")                                                \
        F(text, path, "directory of the checkpoint")                                               \
        F(number, version, "version of the job in the checkpoint")                                 \
        F(number, bytes, "bytes of all parts")                                                     \
        F(number, done_bytes, "bytes written or read")                                             \
        F(number, buffer_bytes, "bytes of the copies of planes")                                   \
        F(real, predicted_stall_s, "longest delay of the next update; null: none")                 \
        F(real, copy_s, "time of the slowest copy; null: not over")                                \
        F(real, elapsed_s, "time from its beginning to its end, or to now")                        \
        F(text, waits, "why it has moved no byte for 5 s; empty: it goes on, or is over")          \
        F(text, status, "status that it ended with; OK while it runs")                             \
        F(text, error, "reason of the failure")

#define STATUS_PROGRESS(F, R)                                                                      \
        F(text, job, "name")                                                                       \
        R(inlined, status_operation, operation, "the newest operation")                            \
        R(inlined, status_schedule, schedule, "schedule of periodic checkpoints")

#define STATUS_ORDERED(F, R)                                                                       \
        F(text, job, "name")                                                                       \
        F(text, directory, "directory of the checkpoint")                                          \
        F(number, id, "number of the operation; 0: a schedule")                                    \
        R(inlined, status_schedule, schedule, "schedule of periodic checkpoints")

/* ---- what is asked of all nodes ---- */

/* What one node tells the others. */
#define STATUS_EXAMINED_HERE(F, R)                                                                 \
        F(text, version, "version of zerod")                                                       \
        F(real, clock_s, "the node's clock, since 1970")                                           \
        R(list, status_finding, findings, "what the node found")

#define STATUS_EXAMINED_NODE(F, R)                                                                 \
        F(text, node, "name")                                                                      \
        R(list, status_finding, findings, "about the node")

#define STATUS_EXAMINED(F, R)                                                                      \
        R(list, status_examined_node, nodes, "all nodes")

#define STATUS_TRACED_WAIT(F, R)                                                                   \
        F(text, call, "what the rank has called, such as step")                                    \
        F(number, rank, "number")                                                                  \
        F(number, group, "number; null: none")                                                     \
        R(called, "for", who, "the rank, node or disk that keeps the call waiting")                \
        F(text, what, "what that rank, node or disk has to do")                                    \
        F(number, begun_ns, "begin of the call, on the node's clock")

/* What one node tells the others. */
#define STATUS_TRACED_HERE(F, R)                                                                   \
        F(number, now_ns, "the node's clock")                                                      \
        F(text, events, "a part for each thing that took time")                                    \
        R(list, status_traced_wait, waits, "calls that wait")

#define STATUS_TRACED_NODE(F, R)                                                                   \
        F(text, node, "name")                                                                      \
        F(real, ahead_s, "the node's clock less that of the node that was asked")                  \
        F(real, within_s, "how far ahead_s may be wrong")                                          \
        F(text, events, "for each thing that took time, with ; behind it: what, which rank, owner or node, "  \
          "group or -, version, begin and duration in microseconds of the node's clock")           \
        R(list, status_traced_wait, waits, "calls that wait")

#define STATUS_TRACE(F, R)                                                                         \
        R(list, status_traced_node, nodes, "nodes of the job that answered")

#define STATUS_REACHED(F, R)                                                                       \
        F(text, node, "name")                                                                      \
        F(flag, up, "it has answered")                                                             \
        F(real, round_trip_s, "round trip; null: no answer came")

#define STATUS_PING(F, R)                                                                          \
        R(list, status_reached, peers, "all other nodes")

#define STATUS_MEASURED_LINK(F, R)                                                                 \
        F(text, from, "another node")                                                              \
        F(real, bytes_per_s, "received from it while all nodes receive from all others")

/* What one node tells the others. */
#define STATUS_MEASURED_HERE(F, R)                                                                 \
        F(real, bytes_per_s, "read and written; of links: received; null: no other node")          \
        R(list, status_measured_link, links, "of links: the other nodes")

#define STATUS_MEASURED_NODE(F, R)                                                                 \
        F(text, node, "name")                                                                      \
        R(inlined, status_measured_here, here, "what the node measured")

#define STATUS_MEASURED(F, R)                                                                      \
        R(list, status_measured_node, nodes, "all, measured at the same time")

/* What one node tells the others. */
#define STATUS_DROP_HERE(F, R)                                                                     \
        F(flag, keeps, "the node remembers the drop until all nodes know of it")                   \
        F(texts, untold, "nodes that it has not told")

#define STATUS_DROP(F, R)                                                                          \
        F(text, job, "name")                                                                       \
        F(flag, dropped, "the job is dropped on all nodes that are up")                            \
        F(texts, untold, "nodes that will be told when they come up")

/* A checkpoint in a directory. */
#define STATUS_KEPT(F, R)                                                                          \
        F(text, name, "of its directory; empty: the directory that was named is it")               \
        F(text, job, "its job; null: its manifest cannot be used")                                 \
        F(number, version, "version of the job in it")                                             \
        F(real, age_s, "time since it was taken")                                                  \
        F(number, bytes, "bytes of its shards")                                                    \
        F(number, shards, "number of its shards")                                                  \
        F(number, shards_here, "those whose files are there, of the right length")                 \
        F(text, flaw, "what is wrong with it; null: nothing was seen")

#define STATUS_KEPT_ALL(F, R)                                                                      \
        F(text, directory, "the directory")                                                        \
        F(number, left_out, "older ones that are not told")                                        \
        R(list, status_kept, checkpoints, "those in it that the user may restore, newest first")

/* How far a check of a checkpoint's bytes is. */
#define STATUS_VERIFIED(F, R)                                                                      \
        F(number, shard, "where it goes on: the shard")                                            \
        F(number, block, "where it goes on: the block")                                            \
        F(number, bytes, "bytes that this question has had checked, up to a block")               \
        F(flag, over, "all bytes are those that were written")

/* What a client asks of a directory with "checkpoints" and "verify". */
#define STATUS_VISIT(F, R)                                                                         \
        F(text, directory, "the directory")                                                        \
        F(text, seen, "what the client sees there, to be compared: DEVICE:INODE PATH")             \
        F(number, shard, "verify only: as in the answer before; at first 0")                       \
        F(number, block, "verify only: as in the answer before; at first 0")

/* What a client asks for with "checkpoint", "restore", "grant" and "revoke". */
#define STATUS_WISH(F, R)                                                                          \
        F(text, job, "name")                                                                       \
        F(text, directory, "directory of the checkpoint")                                          \
        F(number, keep, "how many checkpoints to keep; null: all")                                 \
        F(number, every, "steps between two checkpoints; 0: stop; null: one now")                  \
        F(number, uid, "user who asks; set by the node that the client is connected to")           \
        F(text, convert, "\"restore\": formats that the job gets, \"job\" or as \"8bit,bf16+8\"")    \
        F(text, seen, "what the client sees there, to be compared: DEVICE:INODE PATH")             \
        F(number, user, "\"grant\" and \"revoke\", which name no directory: the user")

/* ---- all ---- */

#define STATUS_RECORDS(X)                                                                          \
        X(status_rank, STATUS_RANK)                                                                \
        X(status_wait, STATUS_WAIT)                                                                \
        X(status_gather, STATUS_GATHER)                                                            \
        X(status_readers, STATUS_READERS)                                                          \
        X(status_reader, STATUS_READER)                                                            \
        X(status_copy, STATUS_COPY)                                                                \
        X(status_versions_here, STATUS_VERSIONS_HERE)                                              \
        X(status_versions, STATUS_VERSIONS)                                                        \
        X(status_grants, STATUS_GRANTS)                                                            \
        X(status_reduce, STATUS_REDUCE)                                                            \
        X(status_stash, STATUS_STASH)                                                              \
        X(status_formula, STATUS_FORMULA)                                                          \
        X(status_session, STATUS_SESSION)                                                          \
        X(status_move, STATUS_MOVE)                                                                \
        X(status_checkpoint, STATUS_CHECKPOINT)                                                    \
        X(status_schedule, STATUS_SCHEDULE)                                                        \
        X(status_waited, STATUS_WAITED)                                                            \
        X(status_origin, STATUS_ORIGIN)                                                            \
        X(status_job, STATUS_JOB)                                                                  \
        X(status_jobs, STATUS_JOBS)                                                                \
        X(status_peer, STATUS_PEER)                                                                \
        X(status_attaching, STATUS_ATTACHING)                                                      \
        X(status_base, STATUS_BASE)                                                                \
        X(status_memory, STATUS_MEMORY)                                                            \
        X(status_collectives, STATUS_COLLECTIVES)                                                  \
        X(status_cuda, STATUS_CUDA)                                                                \
        X(status_gpu_memory, STATUS_GPU_MEMORY)                                                    \
        X(status_allocation, STATUS_ALLOCATION)                                                    \
        X(status_gpu, STATUS_GPU)                                                                  \
        X(status_finding, STATUS_FINDING)                                                          \
        X(status_node, STATUS_NODE)                                                                \
        X(status_option, STATUS_OPTION)                                                            \
        X(status_config, STATUS_CONFIG)                                                            \
        X(status_replica, STATUS_REPLICA)                                                          \
        X(status_replicas, STATUS_REPLICAS)                                                        \
        X(status_shard, STATUS_SHARD)                                                              \
        X(status_group, STATUS_GROUP)                                                              \
        X(status_job_shards, STATUS_JOB_SHARDS)                                                    \
        X(status_shards, STATUS_SHARDS)                                                            \
        X(status_owner_map, STATUS_OWNER_MAP)                                                      \
        X(status_job_map, STATUS_JOB_MAP)                                                          \
        X(status_map, STATUS_MAP)                                                                  \
        X(status_mirror, STATUS_MIRROR)                                                            \
        X(status_member, STATUS_MEMBER)                                                            \
        X(status_membership, STATUS_MEMBERSHIP)                                                    \
        X(status_drained_rank, STATUS_DRAINED_RANK)                                                \
        X(status_drained, STATUS_DRAINED)                                                          \
        X(status_awaited, STATUS_AWAITED)                                                          \
        X(status_job_move, STATUS_JOB_MOVE)                                                        \
        X(status_taken_back, STATUS_TAKEN_BACK)                                                    \
        X(status_room, STATUS_ROOM)                                                                \
        X(status_moves_here, STATUS_MOVES_HERE)                                                    \
        X(status_moves, STATUS_MOVES)                                                              \
        X(status_operation, STATUS_OPERATION)                                                      \
        X(status_progress, STATUS_PROGRESS)                                                        \
        X(status_ordered, STATUS_ORDERED)                                                          \
        X(status_reached, STATUS_REACHED)                                                          \
        X(status_ping, STATUS_PING)                                                                \
        X(status_examined_here, STATUS_EXAMINED_HERE)                                              \
        X(status_examined_node, STATUS_EXAMINED_NODE)                                              \
        X(status_examined, STATUS_EXAMINED)                                                        \
        X(status_traced_wait, STATUS_TRACED_WAIT)                                                  \
        X(status_traced_here, STATUS_TRACED_HERE)                                                  \
        X(status_traced_node, STATUS_TRACED_NODE)                                                  \
        X(status_trace, STATUS_TRACE)                                                              \
        X(status_measured_link, STATUS_MEASURED_LINK)                                              \
        X(status_measured_here, STATUS_MEASURED_HERE)                                              \
        X(status_measured_node, STATUS_MEASURED_NODE)                                              \
        X(status_measured, STATUS_MEASURED)                                                        \
        X(status_drop_here, STATUS_DROP_HERE)                                                      \
        X(status_drop, STATUS_DROP)                                                                \
        X(status_kept, STATUS_KEPT)                                                                \
        X(status_kept_all, STATUS_KEPT_ALL)                                                        \
        X(status_verified, STATUS_VERIFIED)                                                        \
        X(status_visit, STATUS_VISIT)                                                              \
        X(status_wish, STATUS_WISH)

/* clang-format on */

STATUS_RECORDS(RECORD_DECLARE)
