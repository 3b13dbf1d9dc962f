/*
 * zero.h - client library of zerod, the parameter-partition service.
 *
 * A trainer describes its model once (a layout: groups of tensors), attaches to
 * a job as one of its ranks, and then, step by step, fetches groups of
 * parameters, pushes their gradients and asks for the update.  The daemon of the
 * node holds what the trainer reads and writes in shared memory; no parameter
 * and no gradient passes through the socket.
 *
 * Terms and arithmetic follow ZeRO (Rajbhandari et al., SC20, arXiv 1910.02054)
 * and AdamW (Loshchilov and Hutter, arXiv 1711.05101).
 *
 * Errors: every call returns ZERO_OK (0) or another enum zero_status;
 * zero_error() then returns a sentence that names the cause.  ret_* is written
 * only on success.
 * NULL: ZERO_EINVAL where a call needs the object, for which zero_error(NULL) has the text if the object is
 * the client.  The comment of a call says where NULL is allowed; memory for 0 elements may be NULL.  Calls that
 * return no status return 0, false or NULL then, and zero_fd() -1.
 * Blocking: calls marked [blocks] wait for the daemon, at most for the timeout
 * given to zero_connect().  Then they return ZERO_EDEADLINE, and the daemon says
 * what the call waited for.  If the daemon says nothing for two more seconds, the
 * call returns ZERO_EDEADLINE and the client takes the daemon for lost.
 * A late rank: a timeout that the caller gives holds for every wait.  Without one
 * (timeout_ms 0) zero_compose(), zero_attach(), zero_norm(), zero_tensor_norms(), zero_all_reduce(), zero_step() and
 * zero_grad() wait longer while they
 * wait only for ranks that are alive.  A rank is alive if its process runs, until 30 minutes (the
 * daemon's option rank_wait_ms) after the rank's last call.  A rank that has not attached yet, or
 * not again since its node's daemon was lost, counts as alive for 30 minutes.  Then ZERO_EDEADLINE
 * names the rank and its last call.  Nothing waits longer for a rank whose process has stopped or
 * ended, or for a node that is down.  Where the daemon may not see the process, an open connection
 * counts as a running process.
 * After 10 s such a wait is told on standard error (zero_on_wait()).
 * A lost daemon: a client that is attached as a rank connects and attaches again by itself.  The
 * call that finds the daemon gone does so, or the next call marked [blocks].  It tries to connect
 * for as long as the timeout, and then waits as long again to be let in.  ZERO_EDEADLINE says what
 * it waited for, and the next call tries again.  If the step in flight was decided meanwhile,
 * zero_step() returns the step's result as if nothing had happened.  If the client had nothing
 * fetched, asked for or pushed, and the version is the same, the call goes on, except zero_put(),
 * zero_norm(), zero_tensor_norms() of GRAD, zero_all_reduce() and zero_step().  Otherwise the call returns ZERO_EABORTED.
 * After ZERO_EABORTED zero_steps() says where to go on: the version is one higher if the step was
 * committed after all.  A client that is not a rank does not connect again: ZERO_ECLOSED.
 * Closing: ZERO_ECLOSED is final.  So is a refusal that no further try would change, such as
 * ZERO_ERANK for a rank that another process has taken or ZERO_ENOJOB for a dropped job.  Views and
 * gradient memory stay mapped until zero_close(), but their contents are undefined once the daemon
 * was lost.  On a GPU they occupy memory until the daemon is lost a second time.  To read an fp32
 * view of a job that was dropped or restored may end the process (SIGBUS): its memory is gone.
 * Threads: one thread at a time may use a client; ZERO_EBUSY if another one waits in a call of it, with
 * zero_error(NULL) for the sentence.  zero_close() is not refused: it frees the client under that thread.
 * Different clients are independent.
 * Fork: a client is that of the process that connected.  In a process forked from that one its calls
 * are ZERO_ECLOSED, zero_interrupt() does nothing, and zero_close() gives back the forked process's
 * memory and descriptors alone; zero_connect() makes a client of its own.  When the process that connected
 * has ended, and the daemon may see that, the rank counts as lost, even if a forked one keeps the connection open.
 */
#pragma once

#include "zero_types.h"

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

struct zero_client;
struct zero_layout;
struct zero_stash;

/*
 * The version of this header, as a number: 10000 * major + 100 * minor + patch; zero_library_version() is that of the
 * library.  Structures have no member for their size, for a program that zeroes or initialises them is right again when
 * it is compiled again, and a release in which one grows has another soname.
 */
#define ZERO_LIBRARY_VERSION 100

/* As a number of groups: all of the model. */
#define ZERO_ALL UINT32_MAX
/* As zero_needs.push_groups: the service chooses. */
#define ZERO_AUTO (UINT32_MAX - 1)
/* Rank of a client that reads and writes state and takes no part in steps: zeroctl, evaluation. */
#define ZERO_OBSERVER (-1)

/* ---- layout: what the model looks like -------------------------------- */

struct zero_tensor {
        const char *name;       /* unique in the layout, at most ZERO_NAME_MAX bytes */
        uint32_t ndim;          /* 0 (a scalar) to ZERO_DIM_MAX */
        const uint64_t *shape;  /* ndim extents; an extent of 0 is allowed; of bytes in a group of
                                 * bytes, four of which are an element in all other counts */
        bool frozen;            /* never updated; has no moments and no gradient; in a group of
                                 * bytes (ZERO_BYTES_MAP) all tensors are */
        uint32_t set;           /* the hyperparameter set of zero_step() that applies at first
                                 * (ZERO_PLANE_SET) */
        enum zero_init init;
        double init_value;
        uint64_t init_seed;
};

/* Makes an empty layout.  The caller owns it and frees it with zero_layout_free(). */
int zero_layout_new(struct zero_layout **ret_layout);
/* Frees a layout, any time after zero_attach().  NULL is allowed. */
void zero_layout_free(struct zero_layout *layout);

/*
 * Appends a group: tensors that are fetched and pushed together (a transformer
 * block, say), all of one dtype.  ranks lists the ranks that push gradients of this
 * group (NULL: all); its gradient is the sum over them divided by divisor (0:
 * their number; else at least 1e-30).  Strings and arrays are copied.
 */
int zero_layout_group(struct zero_layout *layout, const char *name, enum zero_dtype dtype,
                      const uint32_t *ranks, uint32_t n_ranks, double divisor, uint32_t *ret_group);

/*
 * Chooses a group's optimizer: "adamw", as it is without this call, "adam", "lion", "sgd"
 * or "sgd-momentum", or one of these with "-ema" behind its name, as "adamw-ema": that keeps the average of the
 * weights too (ema_decay below); NULL: "adamw".  The optimizer says which planes the group's tensors have beside
 * the master weights, and which member of struct zero_set applies.  All ranks choose the same.  A job's
 * state and its checkpoints go on under the same optimizer only: zero_attach() refuses another one
 * (ZERO_ELAYOUT) and names it.
 */
int zero_layout_optimizer(struct zero_layout *layout, uint32_t group, const char *optimizer);

/*
 * Makes a group eager: its owners update its shards as soon as its gradient is complete, while ranks
 * still compute other gradients (the eager parameter server of L2L, arXiv 2002.05645), if ranks say
 * ahead how they will end the step (zero_ahead()).  Until the step is decided the group is served as
 * before, and its old values are kept: master weights and moments of an eager group take twice the
 * memory, and an fp32 group has served parameters beside its master weights.  All ranks choose the
 * same; a job's state goes on under the same choice only.  Results are those of a group that is not
 * eager, to the bit.
 */
int zero_layout_eager(struct zero_layout *layout, uint32_t group);

/*
 * Appends a tensor to the last group: append all tensors of a group before the next group.
 * The tensor's index counts through the layout.
 */
int zero_layout_tensor(struct zero_layout *layout, uint32_t group, const struct zero_tensor *tensor,
                       uint32_t *ret_tensor);

/* Number of groups, and of tensors, of a layout. */
uint32_t zero_layout_groups(const struct zero_layout *layout);
uint32_t zero_layout_tensors(const struct zero_layout *layout);
/* Offset of a tensor in its group's flat array, in elements; a multiple of 128. */
uint64_t zero_layout_offset(const struct zero_layout *layout, uint32_t tensor);
/* Elements of a tensor; of a group's flat array, alignment gaps included. */
uint64_t zero_layout_tensor_elements(const struct zero_layout *layout, uint32_t tensor);
uint64_t zero_layout_group_elements(const struct zero_layout *layout, uint32_t group);
/*
 * Names, types and shapes, for a client that got a job's layout from
 * zero_client_layout().  Strings and arrays belong to the layout.  For an index
 * out of range they return NULL or 0.  *ret_shape has as many extents as the call returns, *ret_ranks as many
 * ranks; either may be NULL.
 */
const char *zero_layout_group_name(const struct zero_layout *layout, uint32_t group);
enum zero_dtype zero_layout_group_dtype(const struct zero_layout *layout, uint32_t group);
bool zero_layout_group_eager(const struct zero_layout *layout, uint32_t group);
/* The optimizer that updates a group; the divisor as zero_layout_group() took it, 0: the number of ranks. */
const char *zero_layout_group_optimizer(const struct zero_layout *layout, uint32_t group);
double zero_layout_group_divisor(const struct zero_layout *layout, uint32_t group);
/* Number of tensors of a group; their indices are consecutive from *ret_first (NULL: not wanted). */
uint32_t zero_layout_group_tensors(const struct zero_layout *layout, uint32_t group,
                                   uint32_t *ret_first);
/* The ranks that push the group, ascending; 0 of them: all ranks. */
uint32_t zero_layout_group_ranks(const struct zero_layout *layout, uint32_t group,
                                 const uint32_t **ret_ranks);
/*
 * Describes a tensor as zero_layout_tensor() took it; name and shape belong to the layout.  ZERO_ENOGROUP if
 * there is none.
 */
int zero_layout_describe(const struct zero_layout *layout, uint32_t tensor,
                         struct zero_tensor *ret_tensor);
/* Name, group, shape and kind of a tensor. */
const char *zero_layout_tensor_name(const struct zero_layout *layout, uint32_t tensor);
uint32_t zero_layout_tensor_group(const struct zero_layout *layout, uint32_t tensor);
uint32_t zero_layout_tensor_shape(const struct zero_layout *layout, uint32_t tensor,
                                  const uint64_t **ret_shape);
bool zero_layout_tensor_frozen(const struct zero_layout *layout, uint32_t tensor);
/* Finds a tensor by name; ZERO_ENOGROUP if there is none.  Takes time linear in the tensors. */
int zero_layout_find(const struct zero_layout *layout, const char *name, uint32_t *ret_tensor);
/* Bytes of an element, 4 for a word of a type of bytes; 0 if dtype is not valid. */
size_t zero_dtype_size(enum zero_dtype dtype);
/* Whether the service keeps the type as bytes (ZERO_BYTES_MAP). */
bool zero_dtype_is_bytes(enum zero_dtype dtype);
/* The error of the last zero_layout_*() call that failed to change the layout; questions leave theirs to
 * zero_error(NULL).  A text also for NULL. */
const char *zero_layout_error(const struct zero_layout *layout);

/* ---- connection ------------------------------------------------------- */

struct zero_options {
        const char *socket;        /* NULL: $ZEROD_SOCKET, else the default place */
        const char *job;           /* at most ZERO_JOB_MAX bytes of [A-Za-z0-9._-]; NULL: $ZEROD_JOB,
                                    * unless rank is ZERO_OBSERVER, else no job */
        int32_t rank;              /* 0 to world_size - 1, or ZERO_OBSERVER */
        uint32_t world_size;       /* 0, with rank 0: $RANK and $WORLD_SIZE, else 0 of 1, and where
                                    * local_world_size or incarnation are 0, $LOCAL_WORLD_SIZE and
                                    * $TORCHELASTIC_RESTART_COUNT, as torchrun sets them */
        uint32_t local_world_size; /* ranks on this node; 0: world_size */
        uint32_t timeout_ms;       /* of every blocking call; 0: 60000, unless the daemon's option
                                    * wait_ms says otherwise, and longer for a rank that is late */
        uint32_t incarnation;      /* how often this rank was started before (torchrun's restart
                                    * count, say): a process takes the rank from a session with a
                                    * lower incarnation that has not ended, and fences it */
};

/*
 * Connects to the node's daemon. [blocks]  On failure *ret_client is untouched;
 * zero_error(NULL) returns the error of this thread's last zero_connect() or zero_layout_*() that failed, or of a call
 * that was refused because another thread waits.
 * ZERO_ECLOSED: nobody listens there; ZERO_EPERM: this user may not; ZERO_EVERSION: the daemon is of another release;
 * ZERO_ERANK: the rank is not in its world; ZERO_EINVAL names an option or a variable that makes no sense.
 */
int zero_connect(const struct zero_options *options, struct zero_client **ret_client);
/* Ends the session; all views and gradient pointers become invalid.  Calls in which other ranks wait for this one end
 * with ZERO_ELOSTRANK.  NULL is allowed. */
void zero_close(struct zero_client *client);
/*
 * Leaves zero_close() to the end of the process: exit() and the return of main() with status 0 call it.
 * After any other end the rank counts as lost, and a successor may go on.  Nobody uses the client from
 * now on; views stay valid until then.  An end of a forked process changes nothing.  Never blocks.
 */
void zero_close_at_exit(struct zero_client *client);
/*
 * Declares that this rank has completed the job; zero_close() tells the daemon.  When all ranks have
 * left so, the job is finished.  It stays to be read, exported or trained further, until a new job
 * of the same user finds job_limit or a node's memory used up and the places of finished jobs
 * suffice.  Then the daemon drops the job that finished first, and logs that.  With keep false on
 * every rank the daemon drops the job as soon as the last rank has left.  A daemon that restarts no
 * longer knows which jobs are finished, and keeps them.  Never blocks.  ZERO_ENOTATTACHED for a
 * client that is not a rank of a job.
 */
int zero_finish(struct zero_client *client, bool keep);
/* The sentence of the last error; owned by the client, valid until its next call. */
const char *zero_error(const struct zero_client *client);
/* The name of a status code, such as "ELAYOUT", and its meaning. */
const char *zero_status_name(int status);
const char *zero_status_text(int status);
/*
 * A descriptor that polls readable when a reply has come; the library reads the reply.  The
 * descriptor changes when a call connects again.  -1 without a client.
 */
int zero_fd(const struct zero_client *client);
typedef void (*zero_tell)(void *arg, const char *text);
/*
 * Who hears that a call of this rank has waited for 10 s, and again each minute.  The text says for whom, and what
 * that rank, node or disk has to do.  tell is called in the thread of the call, and must not use the client.
 * Without zero_on_wait() the text goes to standard error; with tell NULL nobody hears it.
 */
void zero_on_wait(struct zero_client *client, zero_tell tell, void *arg);
/*
 * Ends the wait of the call that another thread is in, or of the next call: ZERO_ECLOSED.  The rank
 * then counts as lost, as when its process ends, also after zero_close().  Call it from any thread
 * or signal handler, until zero_close().
 */
void zero_interrupt(struct zero_client *client);

/* ---- attach ----------------------------------------------------------- */

struct zero_needs {
        uint32_t hold_groups; /* most groups held (fetched, not released) at once; ZERO_ALL
                               * for stages 1 and 2; 0: 1 */
        uint32_t push_groups; /* most gradients in flight at once; ZERO_ALL: room for all;
                               * 0: 1; ZERO_AUTO: 2, but all on a GPU where the owners of a job
                               * of one rank are, if they take at most an eighth of what is
                               * free there */
        enum zero_dtype grad_dtype;   /* of what the trainer writes to zero_grad() memory; 0:
                                       * ZERO_FP32 */
        enum zero_dtype reduce_dtype; /* between nodes, same on all ranks; 0: ZERO_FP32.  A sum is rounded to it
                                       * once; one beyond the range of ZERO_FP16 (65504) counts as
                                       * not finite, and the step is skipped: scale the loss */
        bool private_views;           /* zero_fetch() returns views that are writable and keep their
                                       * address; in host memory only */
        enum zero_on_lost on_lost_rank; /* of the job: ZERO_LOST_FAIL if any rank asks for it */
        const char *device;           /* of views and gradients; NULL: host memory; "cuda:N": this
                                       * process's N-th GPU, if the daemon has it too */
        const struct zero_stash *stash; /* activation checkpoints; NULL: none */
};

/* A file of a base, in memory that nobody can write to. */
struct zero_file {
        const void *data;
        uint64_t bytes;
};

/*
 * Maps files of frozen weights read-only, as many ranks and jobs read them (LoRA, arXiv 2106.09685): the node
 * has one copy of the base, the files' bytes in this order, for all processes of one user that name files of
 * the same contents.  [blocks] while another process brings the base in.  The first process that names the
 * contents copies them into memory of the service's; the service seals that memory against every change and
 * checks the hash of what is in there.  The service itself opens none of the files, for a user's file system may
 * answer never; a file that changes later changes nothing in the base.
 * Call it before zero_attach(), once for a client.  The layout of the job then names the base by its hash: all
 * ranks name files of the same contents (ZERO_ELAYOUT), and so does whoever goes on with the job.  64 jobs of a user on
 * one base count once against the daemon's option job_limit.
 * Memory stays where it is, also when the daemon is lost; a new daemon gets the base from the first client that is
 * back.  After zero_close() the memory is the caller's, who may munmap() it from ret_files[0].data to the end of the last
 * file.  The node's copy goes with the last client, and the last process that still maps it.
 * On a cluster each node has a copy, from the files that its own processes name.
 * ZERO_ECONFLICT: a file changes while it is read; ZERO_EQUOTA: the daemon's option base_limit; ZERO_ESHM: the
 * node has not that much memory (before anything is read, if it never has); ZERO_EDEADLINE names the process that
 * brings the base in.
 */
int zero_base(struct zero_client *client, const char *const *paths, uint32_t n,
              struct zero_file *ret_files);

/* A base on a GPU. */
struct zero_gpu_base {
        void *data;                /* of the first file; the others lie behind it as in host memory */
        uint64_t bytes;            /* to the end of the last one */
        void (*unmap)(void *data); /* waits for the GPU's work */
};

/*
 * Maps the client's base on a GPU, "cuda:N": this process's N-th, if the daemon has it too.  The GPU has one copy
 * for all processes of the user, which counts against the daemon's option gpu_windows, and goes with the last client that
 * has it, and the last process that still maps it.  [blocks] while the copy is made.
 * Call it between zero_base() and zero_attach(), once.
 * Memory stays where it is, also when the daemon is lost.  The call that connects to a new daemon puts that daemon's
 * copy there, when the GPU has done its work; other threads enqueue none meanwhile.  Where a second copy finds no
 * memory, the first one stays.
 * After zero_close(), and not before, the memory is the caller's, who calls unmap(data).
 * The GPU maps it for reading: a kernel that writes there ends all work of this process on the GPU.  With a driver that
 * maps all memory writable, the write changes what all processes of the user read.
 * ZERO_EGPU: the daemon does not use the GPU, or its driver exports no descriptors; ZERO_EVERSION: the daemon is of
 * a release without such copies; ZERO_EQUOTA, ZERO_ENOMEM: memory.  The base in host memory stays.
 */
int zero_base_copy(struct zero_client *client, const char *device, struct zero_gpu_base *ret_copy);

/*
 * Puts the layout of a job together whose ranks work on different groups, as the stages of a pipeline
 * do (GPipe, arXiv 1811.06965).  Each rank passes the groups that it works on, which list no ranks:
 * a group has the ranks that bring it, and they bring it alike.  [blocks] until all ranks have
 * called.  *ret_layout has all groups, in the order of their first stage, then of its first rank, then
 * of that rank's part; the caller attaches with it, finds its tensors there by name, and frees it.
 * A tensor that several stages share is the tensor of one group that they all bring.
 * A job that exists keeps its layout: a rank that returns brings the part that it brought before.
 * ZERO_ELAYOUT says which ranks bring what differently, or how the part differs from the job's;
 * ZERO_ERANK: another process of the rank has called, or ranks have another world size;
 * ZERO_EDEADLINE names who has not called.
 */
int zero_compose(struct zero_client *client, const struct zero_layout *part, uint32_t stage,
                 struct zero_layout **ret_layout);
/*
 * Joins the job as the rank given to zero_connect(); creates the job if it is
 * new. [blocks] until all ranks have attached.  All ranks must pass the same
 * layout: every rank that is attaching gets ZERO_ELAYOUT with the first difference, and
 * all may attach again with one layout.  The layout is copied.
 * ZERO_EWINDOW says how large the window must be, ZERO_ERANK who has
 * the rank, ZERO_EGPU why the device cannot be used, ZERO_ECONFLICT what the job's other ranks
 * on this node push.  Ranks of one node may have different devices.  While a job runs, ranks of
 * another world size wait until the ranks of the old one have left.  If the daemon is lost
 * meanwhile, a rank connects again.
 * needs NULL: the default of each.  An observer passes NULL for both and gets the job's layout from zero_client_layout().
 */
int zero_attach(struct zero_client *client, const struct zero_layout *layout,
                const struct zero_needs *needs);
/* Number of committed steps. */
uint64_t zero_steps(const struct zero_client *client);
/*
 * The bytes that this rank, or its predecessor, kept with the last decided step
 * (zero_step_options.blob): *ret_bytes of them, 0 if none.  Owned by the client, valid until its next
 * zero_step() or abort.
 */
const void *zero_blob(const struct zero_client *client, size_t *ret_bytes);
/*
 * Number of micro-batches of a group that the service has accepted from this rank in the
 * current step.  A rank that takes the place of a dead rank begins with what the dead rank pushed.
 * zero_push() of a micro-batch that was accepted already changes nothing, so the successor may go
 * through the step again from its start.
 */
uint32_t zero_accepted(const struct zero_client *client, uint32_t group);
/* The loss scale the next zero_step() should use (dynamic loss scaling). */
double zero_loss_scale(const struct zero_client *client);
/* The job's layout, owned by the client; NULL before zero_attach(). */
const struct zero_layout *zero_client_layout(const struct zero_client *client);

/* ---- one step --------------------------------------------------------- */

/*
 * Orders a call behind work that this process has enqueued on a GPU: the call takes effect when all
 * work that is on the stream at the time of the call is done.  NULL, and always in host memory: the
 * work is done already.  The values that zero_fetch() returns are complete; nothing need wait for
 * them.  An ordered call does not wait for the GPU, but if 64 such calls are under way it waits
 * [blocks] until one of them has taken effect.  ZERO_EGPU: the GPU failed.
 * Where the daemon cannot open this process's events (the driver may keep them from another user,
 * or from another /dev/shm; the daemon's log and zeroctl status say so) the call itself waits
 * for that work [blocks], and the thread enqueues nothing for the GPU meanwhile.  ZERO_EDEADLINE
 * names what the call waited for; nothing was done, and the call may be made again.
 */
struct zero_sync {
        void *stream; /* cudaStream_t of needs.device; NULL: the default one */
};

/*
 * Returns a read-only view of a group's parameters at the current version, in the
 * group's dtype, laid flat (zero_layout_offset()). [blocks]  Valid until
 * zero_release(), zero_step() or ZERO_EABORTED.  A group that is fetched several times is held
 * until as many releases; the last release says what its end is ordered behind.  Writing to the
 * view is a segmentation fault; on a GPU it would change what others see.
 * ZERO_EHELD: as many groups are held as needs.hold_groups says.
 *
 * With needs.private_views a group's view has the same address whenever the group is held, from
 * zero_attach() to zero_close().  The caller may write to it: that changes the caller's copy
 * alone, and only until the last zero_release(), zero_step() or ZERO_EABORTED.  When
 * the group is not held, touching the view is a segmentation fault.  Each first fetch of a group
 * maps it, each last release unmaps it.
 */
int zero_fetch(struct zero_client *client, uint32_t group, struct zero_sync *sync,
               const void **ret_view);
/*
 * Asks the daemon to gather a group; does not wait, and never fails for lack of room.  The group
 * takes a slab of the window that nobody holds; without one the call does nothing.  A rank that
 * prefetches declares one group more in needs.hold_groups than it holds at once.
 */
int zero_prefetch(struct zero_client *client, uint32_t group);
/*
 * Ends one zero_fetch() of a group; does not wait, except as struct zero_sync says.  After the last release
 * the view is not valid any more, and its memory may get another group.  sync: of reading the view.
 * ZERO_ENOTHELD: the group is not held.
 */
int zero_release(struct zero_client *client, uint32_t group, struct zero_sync *sync);

/*
 * Returns memory for one gradient of a group, laid flat as the group, in
 * needs.grad_dtype; contents are undefined. [blocks] until a slot is free.
 * The caller owns the memory until zero_push(), which comes before zero_norm() and zero_step():
 * they return ZERO_EORDER with the name of a group whose gradient was not pushed.  A second call
 * before the push returns the same memory.  ZERO_EORDER if no slot can become free because
 * the caller keeps all of them.
 */
int zero_grad(struct zero_client *client, uint32_t group, void **ret_grad);
/*
 * Hands the gradient over; does not wait, except as struct zero_sync says.  present has one
 * byte for each tensor of the group, 0 for a tensor without a gradient in this step (NULL: all
 * trainable tensors have one).  A push with 0 for every trainable tensor needs no zero_grad() and
 * takes no slot.  The ranks of a node get their slots back when all of them have pushed the group,
 * so a rank that has nothing for some groups pushes those before it waits for slots for the others.
 * A slot that is a group's own (needs.push_groups: ZERO_ALL, or a number whose slots would take as much memory) may
 * not come back before the step is over, or before zero_grad() asks for it.
 * last is false while more micro-batches of this step follow: the owners add up their gradients.  They are summed, not
 * averaged: divide the loss of each by their number for the mean, as only the sum over ranks is divided
 * (zero_layout_group()).  A later call on the same client reports the daemon's refusal of a push.  A later call
 * also reports that the daemon is lost, as after zero_release() and zero_prefetch().
 */
int zero_push(struct zero_client *client, uint32_t group, const uint8_t *present, bool last,
              struct zero_sync *sync);

/*
 * Adam with decoupled weight decay (AdamW, arXiv 1711.05101), as torch.optim.AdamW computes it.  Moments
 * are ZERO_PLANE_EXP_AVG m and ZERO_PLANE_EXP_AVG_SQ v; g is the gradient, negated with maximize; t counts
 * the tensor's updates (ZERO_PLANE_STEP), this one included:
 *
 *   p = p (1 - lr weight_decay);  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
 *   p = p - lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * "adam" (arXiv 1412.6980, as torch.optim.Adam computes it) has the same members and moments; the decay
 * is a part of the gradient: g = g + weight_decay p in the place of p = p (1 - lr weight_decay).
 */
struct zero_adamw {
        double lr, beta1, beta2;
        double eps; /* > 0 as an fp32 number */
        double weight_decay;
        double maximize;  /* 0 or 1 */
        double ema_decay; /* of adamw-ema and adam-ema alone */
};
#define ZERO_PLANE_EXP_AVG ZERO_PLANE_MOMENT1
#define ZERO_PLANE_EXP_AVG_SQ ZERO_PLANE_MOMENT2

/*
 * Lion (arXiv 2302.06675, algorithm 2).  The one moment is ZERO_PLANE_EXP_AVG m; g is as above.  The paper
 * has beta1 0.9 and beta2 0.99, and an lr of a third to a tenth of AdamW's:
 *
 *   p = p (1 - lr weight_decay) - lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
 */
struct zero_lion {
        double lr, beta1, beta2, weight_decay;
        double maximize;  /* 0 or 1 */
        double ema_decay; /* of lion-ema alone */
};

/*
 * Stochastic gradient descent as torch.optim.SGD computes it.  "sgd" has no moment, and the members that
 * say so are 0; "sgd-momentum" has ZERO_PLANE_MOMENTUM_BUFFER b.  g as above:
 *
 *   d = g + weight_decay p;  b = momentum b + (1 - dampening) d, but d at a tensor's first update
 *   p = p - lr (d, without momentum; d + momentum b, with nesterov; else b)
 */
struct zero_sgd {
        double lr;
        double momentum, dampening; /* of sgd-momentum alone */
        double weight_decay;
        double nesterov;  /* 0 or 1, of sgd-momentum alone */
        double maximize;  /* 0 or 1 */
        double ema_decay; /* of sgd-ema and sgd-momentum-ema alone */
};
#define ZERO_PLANE_MOMENTUM_BUFFER ZERO_PLANE_MOMENT1

/*
 * An optimizer "...-ema" does what the one without "-ema" does, and in the same pass averages the weights, as
 * torch.optim.swa_utils.AveragedModel does with get_ema_multi_avg_fn(ema_decay).  The average e is its last
 * moment: ZERO_PLANE_MOMENT3 of adamw-ema and adam-ema, MOMENT2 of lion-ema and sgd-momentum-ema, MOMENT1 of
 * sgd-ema.  With the new p, and ema_decay in [0, 1), which a step may change as it may lr:
 *
 *   e = ema_decay e + (1 - ema_decay) p, but p at a tensor's first update
 *
 * Where a step changes no weight, as a skipped step or a tensor without a gradient, e stays as it is.  Until a
 * tensor's first update e is the tensor's first values, and a write to MASTER writes e too.
 */

/* Hyperparameters of the tensors of one set.  All their groups have this optimizer. */
struct zero_set {
        const char *optimizer; /* as in zero_layout_optimizer(); NULL: "adamw" */
        union {
                struct zero_adamw adamw, adam;
                struct zero_lion lion;
                struct zero_sgd sgd;
        };
};

/*
 * Sets with the papers' values, as initialisers; members may be changed afterwards, as optimizer and ema_decay
 * for an optimizer "...-ema".  The papers leave open the weight
 * decay: 0.01 of AdamW is torch.optim.AdamW's, the others have none.  A set that is only zeroed is refused: with eps 0
 * a gradient of 0 would make NaN of a weight.  C++17 has no designators, so all numbers go through the union's first
 * member.
 *
 *   struct zero_set set = ZERO_ADAMW(1e-3);
 *   set.adamw.weight_decay = 0.1;
 */
#define ZERO_ADAMW(lr) { "adamw", { { (lr), 0.9, 0.999, 1e-8, 0.01, 0, 0 } } }
#define ZERO_ADAM(lr) { "adam", { { (lr), 0.9, 0.999, 1e-8, 0, 0, 0 } } }
#define ZERO_LION(lr) { "lion", { { (lr), 0.9, 0.99, 0, 0, 0, 0 } } }
#define ZERO_SGD(lr) { "sgd", { { (lr), 0, 0, 0, 0, 0, 0 } } }
#define ZERO_SGD_MOMENTUM(lr, momentum) { "sgd-momentum", { { (lr), (momentum), 0, 0, 0, 0, 0 } } }

struct zero_step_options {
        const struct zero_set *sets;   /* indexed by ZERO_PLANE_SET */
        uint32_t n_sets;               /* 1 to ZERO_SET_MAX; 0: the step ends without an update
                                        * (gradients are dropped, the version stays) */
        double clip_norm;              /* > 0: clip to this global norm; 0: no clipping */
        double loss_scale;             /* what the loss was multiplied by; 0: 1 */
        uint32_t growth_interval;      /* steps without overflow until the loss scale
                                        * doubles; 0: the scale stays as it is */
        const void *blob;              /* kept for this rank with the step, committed or skipped,
                                        * and given back by zero_blob(): where the data loader
                                        * stands, say.  NULL: nothing */
        size_t blob_bytes;             /* at most ZERO_BLOB_MAX */
        struct zero_sync *sync;        /* of reading what is still held */
};

struct zero_result {
        uint64_t version; /* after the step */
        bool skipped;     /* a gradient was not finite, or n_sets is 0: nothing was updated */
        uint32_t skips;   /* steps in a row, this one included, that this client saw skipped because
                           * a gradient was not finite.  With dynamic loss scaling some are usual; a
                           * loop over versions ends when there are too many */
        double grad_norm; /* of the mean gradient, before clipping, loss scale taken out */
        double loss_scale; /* to use next (dynamic loss scaling) */
};

/*
 * Finishes the reduction and returns the global gradient norm (loss scale left
 * in) and whether all gradients are finite; updates nothing yet. [blocks] for all ranks.
 */
int zero_norm(struct zero_client *client, double *ret_norm, bool *ret_finite);
/*
 * The Euclidean norms of tensors first to first + count - 1, one number each, which the tensors' owners compute:
 * nothing is gathered. [blocks]  plane: MASTER, GRAD, or a moment (EXP_AVG and the like).
 * The bits do not depend on owners and nodes.  NaN: some element is not finite.  0: the tensor has nothing there,
 * because it is frozen (GRAD, moments), has no gradient in this step, holds bytes, or its optimizer has no such moment.
 * MASTER and moments: anybody asks at any time, observers too.  All norms are of one version; ZERO_EBUSY if steps
 * are so fast that a step came between in each of 8 tries, which only a call for more than 512 tensors meets.
 * GRAD: of the mean gradient of the step, over all ranks and micro-batches, loss scale left in, as zero_norm();
 * before clipping.  A rank asks, and need not be the only one: between its last zero_push() and its zero_step(), and
 * it pushes nothing more in the step (ZERO_EORDER).  The call waits until all ranks have pushed their last
 * gradient of every group, or have called zero_norm(), zero_step() or this, and no other rank has to call it.
 * ZERO_EDEADLINE names a rank that has not; the call may be made again, or the step ended.  ZERO_EABORTED as zero_step().
 * ZERO_EPERM: an observer asks.
 * ZERO_EINVAL: a plane that has no norms; ZERO_ERANGE: tensors that the layout does not have; ZERO_EBUSY: shards
 * are being moved, try again; ZERO_EPEER: an owner's node was lost meanwhile, ask again when it is back.
 * ret_norms: [count], undefined after an error.
 */
int zero_tensor_norms(struct zero_client *client, enum zero_plane plane, uint32_t first, uint32_t count,
                      double *ret_norms);
/*
 * Makes n numbers, at most ZERO_VALUES_MAX, of the numbers of all ranks, element by element, and returns them
 * on every rank: a loss, a count. [blocks] for all ranks.  The bits depend on the numbers alone: sums are
 * double, in the order of ranks.  ret_values may be values.
 * name: at most 63 bytes; all ranks reduce the same things in the same order.  ZERO_ECONFLICT: another rank
 * reduces something else, or ends the step meanwhile.  ZERO_EDEADLINE names a rank that has not called; the
 * call may be made again.
 * A rank that is started again begins its step anew, while the others may have reduced already: if ranks reduce
 * in an attempt with such a rank, or in the one after it, all ranks get ZERO_EABORTED, as from zero_step().
 */
int zero_all_reduce(struct zero_client *client, const char *name, enum zero_reduction op, uint32_t n,
                    const double *values, double *ret_values);
/*
 * Says how this rank is going to end the step: from now on owners update eager groups
 * (zero_layout_eager()) as soon as all ranks have pushed their last gradient.  Call it before the
 * step's first push; one rank's call is enough.  Ends nothing and waits for nobody [blocks for the
 * daemon's reply].  In this attempt zero_step() takes the same values only: ZERO_ECONFLICT names a
 * rank that passes others.  The call, unlike zero_step(), ignores blob and sync.
 * ZERO_EINVAL: no group is eager, the step has no sets, or it clips or scales the loss: the norm
 * and an overflow are not known before all gradients are.  A gradient that is not finite still skips the whole step:
 * what was updated ahead is undone, as it is by ZERO_EABORTED.  Whoever reads or writes planes before the step is
 * decided (zero_get(), a checkpoint) finds the values before the step, and ends updates ahead for this step.
 */
int zero_ahead(struct zero_client *client, const struct zero_step_options *step);
/*
 * Ends the step.  Groups that this rank has not pushed count as without gradient (the daemon logs
 * a warning about groups that no rank pushes in 8 steps; zeroctl shards shows the last update of
 * each).  The rank's leases end, and, when all ranks have called, the owners update. [blocks]
 * until the decision; the update itself overlaps what comes next.  All ranks
 * pass the same values (ZERO_ECONFLICT names the rank that does not).  If a trainable
 * tensor uses a set that the step does not have, every rank gets ZERO_EINVAL with its
 * name, and the step can be ended by calling again.
 * ZERO_EABORTED, from this or an earlier call of the step: nothing was updated,
 * leases and gradients are gone, and the caller replays the step from its first fetch.
 * ZERO_EDEADLINE leaves the step as it is and names the rank that the step waits for.  Until the step is over, zero_norm(),
 * zero_tensor_norms() of GRAD, zero_all_reduce() and zero_ahead() are ZERO_EORDER for this rank.
 * NULL is allowed for ret_result.
 * ZERO_ELOSTRANK, also from zero_norm(), zero_tensor_norms() of GRAD, zero_all_reduce() or a wait for
 * gradient memory: a rank has left by zero_close(), as calls of the stash say, too, or, with ZERO_LOST_FAIL,
 * its session ended otherwise, as a fetch says, too.  The step cannot end without it: calls say so at once,
 * and ZERO_EABORTED when it, or its successor, has attached.  With ZERO_LOST_WAIT calls wait for the successor
 * of a rank that has not left, and end with ZERO_EDEADLINE.
 */
int zero_step(struct zero_client *client, const struct zero_step_options *step,
              struct zero_result *ret_result);

/* ---- stash: activation checkpoints -------------------------------------- */

/*
 * The service keeps what the backward pass needs again: inputs of blocks that are computed a second time
 * (activation checkpointing).  Ranks that hold the same bytes, such as those of a tensor-parallel group, are
 * a set, and keep each byte once: each rank writes its part, and reads the whole.  That is P_a of ZeRO-R (SC20,
 * section 6.1): the bytes of all checkpoints divided by the ranks of the set.  Ranks of one node map one copy.
 * Parts on other nodes come once a node when somebody reads, and the entry that was written before the one
 * that is read comes with it: the backward pass reads in the opposite order.
 * zero_attach() reserves the memory: where views and gradients are (P_a), or host memory (P_a+cpu).  Blocks of
 * host memory never fail while as many bytes are free (M_D, section 6.3); on a GPU an entry lies in one piece,
 * and also needs a gap of that size.  An entry takes whole units of 4096 bytes, or of bytes / 32768 if that is
 * more.  What is stashed ends with the step, and with ZERO_EABORTED.
 */

/* What a rank stashes; the same on all ranks of the set.  Copied by zero_attach(). */
struct zero_stash {
        const uint32_t *ranks; /* the set, ascending, this rank among them; NULL: this rank alone, as
                                * for sequence-parallel ranks, whose bytes differ.  No rank is in two
                                * sets.  If a rank of a set of several is lost, the step
                                * cannot end without it: ZERO_LOST_FAIL */
        uint32_t n_ranks;
        uint64_t bytes;        /* of all entries at once, each of them whole */
        uint64_t entry_bytes;  /* of the largest entry; 0: bytes.  Where ranks of the set are on
                                * several nodes, each node keeps room for two whole entries more */
        enum zero_stash_where where; /* the ranks of the set on one node name one place (ZERO_ECONFLICT);
                                      * ranks on several GPUs may name ZERO_STASH_HOST */
        bool unchecked;        /* by default all ranks of a set hash their bytes in the first step, and
                                * a difference is ZERO_ECONFLICT, which names two ranks */
};

/*
 * Writes this rank's part of an entry; src is the whole entry of that many bytes, at least 1. [blocks]  With
 * needs.device src may be in host memory or on that GPU: the GPU copies the part when the stream comes to
 * it (sync NULL: the default stream), and src stays as it is until then.  The call waits for the stream in the
 * first step alone, for the hash, or if src is host memory that is not pinned.  Without room it waits for ranks that have not
 * released what this rank has; on a GPU the daemon may also have to move entries together, and waits for ranks that use one of
 * them.  Each rank of the set writes each key once a step (ZERO_EORDER).  ZERO_EWINDOW says how many bytes the stash needs;
 * nothing was written.  ZERO_ECONFLICT if another rank of the set has written another number of bytes, or, in the first step,
 * other bytes.
 */
int zero_stash_write(struct zero_client *client, uint64_t key, const void *src, uint64_t bytes,
                     struct zero_sync *sync);
/*
 * Returns a read-only view of an entry that this rank has written, on the GPU if the stash is there. [blocks]
 * until all ranks of the set have written theirs, on their GPUs too.  Valid until zero_stash_release(), zero_step() or ZERO_EABORTED; read again only after
 * the release.  ZERO_EORDER: this rank has not written it in this step, or has released it for the last time.
 */
int zero_stash_read(struct zero_client *client, uint64_t key, const void **ret_view,
                    uint64_t *ret_bytes);
/*
 * Ends a view; does not wait.  sync: of reading the view.  last: this rank does not read the entry again, and may be true without a read.
 * The memory is free when all ranks of the set have said so; the key may then be written again.
 */
int zero_stash_release(struct zero_client *client, uint64_t key, bool last, struct zero_sync *sync);

/* ---- reading and writing state ---------------------------------------- */

/*
 * Copies count elements of one tensor's plane, starting at element first, between
 * the service and the caller's memory: fp32 for MASTER and moments (EXP_AVG and the like); the
 * group's dtype for SERVE (get only); one uint64_t for STEP and SET. [blocks]
 * zero_put() is for step boundaries (no gradient pushed yet) and one writer;
 * after a write to MASTER every node gathers the group again.  After a write to STEP of a
 * tensor its bias correction continues from there; ZERO_ERANGE above 2^39 - 1.
 * After ZERO_EABORTED the values may have been written or not.  After any other error of a put of
 * more than a MiB some may be written: pieces of it are under way at once.
 * SET selects the hyperparameter set of zero_step() that applies to a trainable tensor.  It
 * starts as zero_tensor.set; a put holds from then on, also after a restart of
 * the service.  Put it at any time before the writer's own zero_step()
 * (ZERO_EORDER), whatever was pushed; ZERO_ERANGE if it is not below ZERO_SET_MAX.
 * Observers get and put as well: zeroctl import is one.
 */
int zero_put(struct zero_client *client, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, const void *src);
int zero_get(struct zero_client *client, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, void *dst);

/*
 * Gives a new job its first values: rank 0 puts values[t] into MASTER of tensor t, as zero_put() takes them (NULL: as
 * zero_tensor.init has it), and every rank returns when all have called. [blocks]  Later fetches return the values.  A
 * job whose ranks have ended a step keeps what it has, and the call returns at once, so a trainer calls it after each
 * zero_attach().  values: [zero_layout_tensors()], read on rank 0 alone; other ranks may pass NULL.
 */
int zero_first_values(struct zero_client *client, const void *const *values);

/* Values of a tensor's plane in a file, one behind the other, little-endian. */
struct zero_values {
        uint32_t tensor;
        enum zero_plane plane; /* MASTER or a moment */
        enum zero_dtype dtype; /* in the file: fp32, bf16 or fp16; of a group of bytes its own */
        uint64_t first, count; /* elements, as of zero_put() */
        uint64_t at;           /* byte of the file */
};

/*
 * zero_put() of n runs of values out of a file (safetensors). [blocks], for the timeout without
 * progress.  The client reads the file by its descriptor, in the order of the runs, a piece at a
 * time, while the service takes earlier pieces in and widens 16-bit values exactly: the client has
 * 20 MiB of the file in memory at most, the service 8.  What the page cache does not have is read
 * around it, ahead if runs are in the order of the file, by a thread that ends with the call, or when
 * a disk that does not answer does.  All runs are checked before the first value is written.  After
 * an error some values may be written; the text names the tensor.  ZERO_ECONFLICT: the file is
 * shorter, or becomes so meanwhile; ZERO_EIO: it cannot be read; ZERO_EDEADLINE: the disk, or the
 * service, does not answer.
 */
int zero_put_file(struct zero_client *client, int fd, const struct zero_values *values, uint32_t n);

/* ---- the service ------------------------------------------------------ */

/*
 * Asks the daemon. [blocks]  what is "status", "jobs", "shards", "ping", "checksum", "config",
 * "drop", "members" (the owners), "moves" (how far jobs have moved to the owners), or "progress"
 * (of a checkpoint or restore); argument is a job name or NULL.  "checkpoint" and "restore" begin
 * one; their argument is a JSON object with "job", "directory" (an absolute path), for checkpoints
 * "keep" and "every", and "seen": "DEVICE:INODE PATH", both as stat() tells them, in hexadecimal,
 * of the directory, or of the nearest one above it that the caller sees.  The daemon may have other
 * mounts, as under systemd its own /tmp: it refuses with ZERO_EINVAL where it sees another one, and
 * compares nothing without "seen".  *ret_json is a JSON text that the caller frees with zero_free().  If
 * the daemon is lost meanwhile, the call connects and asks once more; it leaves ZERO_EABORTED to
 * the step's next call.  ZERO_EBUSY: a user may have 8 questions in flight that all nodes answer,
 * as "checksum", "ping" and "moves" are, and 2 of "shards".  64 of "status" wait for a driver of GPUs.
 */
int zero_query(struct zero_client *client, const char *what, const char *argument,
               char **ret_json);
/* Frees what zero_query() returned, by the library's own free().  NULL is allowed. */
void zero_free(void *memory);
/* The library's version, as ZERO_LIBRARY_VERSION is the header's. */
uint32_t zero_library_version(void);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
