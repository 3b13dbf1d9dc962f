/*
 * zero.h - client library of zerod, the parameter-partition service.
 *
 * A trainer describes its model once, as a layout: groups of tensors.  It attaches to a job as one of the job's
 * ranks.  Then, step by step, it fetches groups of parameters, pushes their gradients and asks for the update.
 * The trainer reads and writes memory that it shares with the node's daemon.  No parameter and no gradient passes
 * through the socket.
 *
 * Terms and arithmetic follow ZeRO (Rajbhandari et al., SC20, arXiv 1910.02054)
 * and AdamW (Loshchilov and Hutter, arXiv 1711.05101).
 *
 * Errors: a call that can fail returns ZERO_OK (0) or another enum zero_status.  After a failure zero_error()
 * returns a sentence that names the cause.  A call writes to ret_* arguments only on success.
 * NULL: a call returns ZERO_EINVAL if an object that it needs is NULL.  If that object is the client,
 * zero_error(NULL) has the text.  The comment of a call says where NULL is allowed.  Memory for 0 elements may be
 * NULL.  If the object is NULL, a call without a status returns 0, false or NULL, and zero_fd() returns -1.
 * Blocking: a call marked [blocks] waits for the daemon, at most for the timeout given to zero_connect().  At the
 * timeout the call returns ZERO_EDEADLINE, and the daemon says what the call waited for.  If the daemon says nothing
 * for two more seconds, the call returns ZERO_EDEADLINE, and the client takes the daemon for lost.
 * A late rank: a timeout that the caller gives holds for every wait.  Without one (timeout_ms 0) some calls wait
 * longer, while they wait only for ranks that are alive.  These calls are zero_compose(), zero_attach(), zero_norm(),
 * zero_tensor_norms(), zero_all_reduce(), zero_step() and zero_grad().  A rank is alive while its process runs, but
 * at most for 30 minutes after its last call (the daemon's option rank_wait_ms).  A rank that has not attached yet
 * counts as alive for 30 minutes.  So does a rank that has not attached again since its node's daemon was lost.
 * After the 30 minutes the call returns ZERO_EDEADLINE, which names the rank and its last call.  No call waits longer
 * for a rank whose process has stopped or ended, or for a node that is down.  If the daemon may not see a process,
 * an open connection counts as a running process.
 * After 10 s of such a wait the client says on standard error for whom it waits (zero_on_wait()).
 * A lost daemon: a client that is attached as a rank connects and attaches again by itself.  The call that finds the
 * daemon gone does so, or the next call marked [blocks].  It tries to connect for as long as the timeout, then waits as
 * long again to be let in.  If it fails, ZERO_EDEADLINE says what it waited for, and the next call
 * tries again.  If the step in flight was decided meanwhile, zero_step() returns the step's result as if nothing had
 * happened.  Otherwise the call goes on if the version is the same, and the client had nothing fetched, asked for or
 * pushed.  Only zero_put(), zero_norm(), zero_tensor_norms() of GRAD, zero_all_reduce() and zero_step() never go on.
 * A call that does not go on returns ZERO_EABORTED.  zero_steps() then says where to go on: the version is one
 * higher if the step was committed after all.  A client that is not a rank does not connect again, and its calls
 * return ZERO_ECLOSED.
 * Closing: ZERO_ECLOSED is final.  A refusal is final, too, if no further try would change it.  Examples are ZERO_ERANK
 * for a rank that another process has taken, and ZERO_ENOJOB for a dropped job.  Views and gradient memory stay mapped
 * until zero_close(), but their contents are undefined once the daemon was lost.  On a GPU they occupy memory until the
 * daemon is lost a second time.  Reading an fp32 view of a job that was dropped or restored may end the process
 * (SIGBUS), because the memory is gone.
 * Threads: one thread at a time may use a client.  A call returns ZERO_EBUSY while another thread waits in a call of
 * the same client, and zero_error(NULL) has the sentence.  zero_close() is not refused: it frees the client under
 * that thread.  Different clients are independent.
 * Fork: a client belongs to the process that connected.  In a process forked from it, calls return ZERO_ECLOSED and
 * zero_interrupt() does nothing.  There zero_close() gives back the forked process's memory and descriptors alone,
 * and zero_connect() makes a new client.  A rank counts as lost when the process that connected has ended, if the
 * daemon may see that.  A forked process that keeps the connection open does not change this.
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
 * The version of this header as a number: 10000 * major + 100 * minor + patch.  zero_library_version() returns the
 * library's version.  Structures have no member for their size: a release in which one grows has another soname.
 * A program that zeroes or initialises its structures is right once it is compiled again.
 */
#define ZERO_LIBRARY_VERSION 100

/* All groups of the model, as a number of groups. */
#define ZERO_ALL UINT32_MAX
/* For zero_needs.push_groups: the service chooses the number. */
#define ZERO_AUTO (UINT32_MAX - 1)
/* The rank of a client that reads and writes state and takes no part in steps, such as zeroctl or an evaluation. */
#define ZERO_OBSERVER (-1)

/* ---- layout: what the model looks like -------------------------------- */

struct zero_tensor {
        const char *name;       /* unique in the layout, at most ZERO_NAME_MAX bytes */
        uint32_t ndim;          /* 0 (a scalar) to ZERO_DIM_MAX */
        const uint64_t *shape;  /* ndim extents; an extent of 0 is allowed.  In a group of bytes
                                 * (ZERO_BYTES_MAP) a shape counts bytes.  Everywhere else an element
                                 * of such a group is a word of four bytes */
        bool frozen;            /* never updated; has no moments and no gradient.  All tensors of a
                                 * group of bytes are frozen */
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
 * Appends a group: tensors of one dtype that are fetched and pushed together, such as those of a transformer block.
 * ranks lists the ranks that push gradients of the group; NULL stands for all ranks.  The group's gradient is the
 * sum over these ranks, divided by divisor.  A divisor of 0 stands for the number of these ranks; any other is at
 * least 1e-30.  The call copies strings and arrays.
 */
int zero_layout_group(struct zero_layout *layout, const char *name, enum zero_dtype dtype,
                      const uint32_t *ranks, uint32_t n_ranks, double divisor, uint32_t *ret_group);

/*
 * Chooses a group's optimizer, one of ZERO_OPTIMIZERS; NULL: "adamw", as it is without this call.  The optimizer says
 * which planes the group's tensors have beside the master weights, and which member of struct zero_set applies.  All
 * ranks choose the same.  A job's state and its checkpoints go on under the same optimizer only: zero_attach() refuses
 * another one (ZERO_ELAYOUT) and names it.
 */
int zero_layout_optimizer(struct zero_layout *layout, uint32_t group, const char *optimizer);
#define ZERO_OPTIMIZERS "adamw, adam, lion, sgd, sgd-momentum or muon"
/* X(name, struct of its hyperparameters, planes beside the master weights).  The first is the default. */
#define ZERO_OPTIMIZER_MAP(X)                           \
        X("adamw", zero_adamw, "exp_avg", "exp_avg_sq") \
        X("adam", zero_adamw, "exp_avg", "exp_avg_sq")  \
        X("lion", zero_lion, "exp_avg")                 \
        X("sgd", zero_sgd, NULL)                        \
        X("sgd-momentum", zero_sgd, "momentum_buffer")  \
        X("muon", zero_muon, "momentum_buffer")

/*
 * Has a group keep the average of its weights (ZERO_PLANE_EMA), beside any optimizer.  Each update averages the weights
 * in the same pass, by the ema_decay of its struct zero_set.  All ranks choose the same, and a job's state and its
 * checkpoints go on under the same choice only.
 */
int zero_layout_ema(struct zero_layout *layout, uint32_t group);

/*
 * Chooses in which formats owners keep the moments and the master weights of a group.
 *
 *   state    "fp32" (NULL), "bf16" with 2 bytes an element, or "8bit" with 17 bytes for 16 elements.  The averages of
 *            zero_layout_ema() stay in fp32
 *   master   "fp32" (NULL).  Of a bf16 group also "bf16+16" or "bf16+8": what is served, and 16 or 8 bits more.  With
 *            16 the master weights are exact, and with 8 they have 16 bits of precision.  An eager group cannot have
 *            these.  What is served is rounded from between two bf16 away from 0
 *
 * zero_get() and zero_put() have fp32 in any case, and what is put is rounded.  An update has the same bits for any
 * owners.  daemon/compute/README.md tells the errors of a value.  All ranks choose the same, and a job's state goes on
 * under the same choice only.  A checkpoint has its own choice, and "restore" converts it by name.
 */
int zero_layout_state(struct zero_layout *layout, uint32_t group, const char *state, const char *master);

/*
 * Makes a group eager: its owners update their shards as soon as its gradient is complete, while ranks still compute
 * other gradients.  This is the eager parameter server of L2L (arXiv 2002.05645).  It needs ranks that say ahead how
 * they will end the step (zero_ahead()).  Until the step is decided, the group is served as before, and its old
 * values are kept.  So the master weights and moments of an eager group take twice the memory, and an fp32 group
 * keeps served parameters beside its master weights.  All ranks choose the same, and a job's state goes on under the
 * same choice only.  Results are equal, to the bit, to those of a group that is not eager.
 */
int zero_layout_eager(struct zero_layout *layout, uint32_t group);

/*
 * Appends a tensor to the last group.  Append all tensors of a group before the next group.
 * *ret_tensor is the tensor's index, which counts through the whole layout.
 */
int zero_layout_tensor(struct zero_layout *layout, uint32_t group, const struct zero_tensor *tensor,
                       uint32_t *ret_tensor);

/*
 * Keeps a tensor in one piece: one owner has all of it, where any other tensor is cut over several owners.  So the
 * owner alone computes the tensor's norm and update.  Slices then differ in size.  Owners get them such that all have
 * about as much; a trained element counts as four frozen ones.  zeroctl plan tells, of a job that exists, how much the
 * owner with most has.  All ranks choose the same.  Results are equal, to the bit, to those of any other choice.  A job
 * is continued with the same choice alone.  A checkpoint that is restored into a job takes the choice of that job.
 * zerod of the release before refuses such a layout.
 */
int zero_layout_whole(struct zero_layout *layout, uint32_t tensor);

/*
 * Chooses the optimizer of one tensor, where it is another one than its group's: a transformer block has matrices for
 * "muon" and vectors for "adamw", and is still one group, which one request fetches.  As zero_layout_optimizer() in all
 * else.  zerod of the release before refuses such a layout.
 */
int zero_layout_tensor_optimizer(struct zero_layout *layout, uint32_t tensor, const char *optimizer);

/*
 * Says what the matrices of a tensor are that "muon" updates.  A tensor of shape [..., rows, cols] is a stack of
 * matrices, as of experts; without this call each is one matrix.  A fused matrix is several below one another: with
 * rows {n, n, n} a matrix of shape [3 n, cols] is updated as query, key and value apart.  The n_rows numbers (at most
 * 256) add up to the tensor's last but one dimension.  A matrix has one owner, and owners get them such that all have
 * about as much memory and about as much work.  All ranks choose the same, as in zero_layout_whole().
 */
int zero_layout_matrices(struct zero_layout *layout, uint32_t tensor, const uint64_t *rows, uint32_t n_rows);

/*
 * Tells how n_owners owners divide the groups: of group g, owner o has ret_count[g * n_owners + o] elements from
 * element ret_first[g * n_owners + o] on.  Both arrays have an item for each group and owner.  dtype: of the groups
 * that are not of bytes, in place of their own; 0: their own.  At least one owner; the layout stays as it is.
 */
int zero_layout_partition(const struct zero_layout *layout, uint32_t n_owners, enum zero_dtype dtype,
                          uint64_t *ret_first, uint64_t *ret_count);

/* Returns the number of groups, or of tensors, of a layout. */
uint32_t zero_layout_groups(const struct zero_layout *layout);
uint32_t zero_layout_tensors(const struct zero_layout *layout);
/* Returns the offset of a tensor in its group's flat array, in elements; a multiple of 128. */
uint64_t zero_layout_offset(const struct zero_layout *layout, uint32_t tensor);
/* Returns the number of elements of a tensor, or of a group's flat array with its alignment gaps. */
uint64_t zero_layout_tensor_elements(const struct zero_layout *layout, uint32_t tensor);
uint64_t zero_layout_group_elements(const struct zero_layout *layout, uint32_t group);
/*
 * Tells a group's name, its dtype, if it is eager, and if it keeps the average of its weights.  A client that got a
 * job's layout from zero_client_layout() reads it in this way.  Strings and arrays belong to the layout.  An index out
 * of range gives NULL, 0 or false.
 */
const char *zero_layout_group_name(const struct zero_layout *layout, uint32_t group);
enum zero_dtype zero_layout_group_dtype(const struct zero_layout *layout, uint32_t group);
bool zero_layout_group_eager(const struct zero_layout *layout, uint32_t group);
bool zero_layout_group_ema(const struct zero_layout *layout, uint32_t group);
/*
 * Returns the optimizer that updates a group, the formats that zero_layout_state() took, or the divisor that
 * zero_layout_group() took.  zero_layout_group_state() returns the format of the moments, and that of the master
 * weights in *ret_master, which may be NULL.  A divisor of 0 stands for the number of ranks.
 */
const char *zero_layout_group_optimizer(const struct zero_layout *layout, uint32_t group);
const char *zero_layout_group_state(const struct zero_layout *layout, uint32_t group, const char **ret_master);
double zero_layout_group_divisor(const struct zero_layout *layout, uint32_t group);
/*
 * Returns the number of tensors of a group.  Their indices are consecutive and begin with *ret_first.
 * ret_first may be NULL.
 */
uint32_t zero_layout_group_tensors(const struct zero_layout *layout, uint32_t group,
                                   uint32_t *ret_first);
/*
 * Returns the number of ranks that a group lists; 0 stands for all ranks.  *ret_ranks has that many ranks, ascending,
 * and belongs to the layout.  ret_ranks may be NULL.
 */
uint32_t zero_layout_group_ranks(const struct zero_layout *layout, uint32_t group,
                                 const uint32_t **ret_ranks);
/*
 * Describes a tensor as zero_layout_tensor() took it.  Name and shape belong to the layout.
 * ZERO_ENOGROUP: the layout has no such tensor.
 */
int zero_layout_describe(const struct zero_layout *layout, uint32_t tensor,
                         struct zero_tensor *ret_tensor);
/*
 * Tells a tensor's name, its group, its shape, if it is frozen, its optimizer, and the rows of its matrices.
 * zero_layout_tensor_shape() returns the number of extents in *ret_shape, and zero_layout_tensor_rows() the number of
 * matrices below one another in *ret_rows, 0 if no optimizer updates it matrix by matrix.  The arrays belong to the
 * layout, and ret_shape and ret_rows may be NULL.
 */
const char *zero_layout_tensor_name(const struct zero_layout *layout, uint32_t tensor);
uint32_t zero_layout_tensor_group(const struct zero_layout *layout, uint32_t tensor);
uint32_t zero_layout_tensor_shape(const struct zero_layout *layout, uint32_t tensor,
                                  const uint64_t **ret_shape);
bool zero_layout_tensor_frozen(const struct zero_layout *layout, uint32_t tensor);
const char *zero_layout_optimizer_of(const struct zero_layout *layout, uint32_t tensor);
uint32_t zero_layout_tensor_rows(const struct zero_layout *layout, uint32_t tensor,
                                 const uint64_t **ret_rows);
/*
 * Finds a tensor by name, in time linear in the number of tensors.
 * ZERO_ENOGROUP: the layout has no tensor of that name.
 */
int zero_layout_find(const struct zero_layout *layout, const char *name, uint32_t *ret_tensor);
/* Returns the bytes of an element: 4, a word, for a type of bytes, and 0 for a dtype that is not valid. */
size_t zero_dtype_size(enum zero_dtype dtype);
/* Returns true if the service keeps the type as bytes (ZERO_BYTES_MAP). */
bool zero_dtype_is_bytes(enum zero_dtype dtype);
/*
 * Returns the sentence of the last call that failed to change the layout.  Calls that only read a layout leave their
 * sentence to zero_error(NULL).  For NULL the call returns a text, too.
 */
const char *zero_layout_error(const struct zero_layout *layout);

/* ---- connection ------------------------------------------------------- */

struct zero_options {
        const char *socket;        /* NULL: $ZEROD_SOCKET, else the default place */
        const char *job;           /* at most ZERO_JOB_MAX bytes of [A-Za-z0-9._-].  NULL: $ZEROD_JOB,
                                    * unless rank is ZERO_OBSERVER, else no job */
        int32_t rank;              /* 0 to world_size - 1, or ZERO_OBSERVER */
        uint32_t world_size;       /* 0, with rank 0: take $RANK and $WORLD_SIZE, as torchrun sets them,
                                    * else rank 0 of 1.  Then a local_world_size or incarnation of 0
                                    * takes $LOCAL_WORLD_SIZE or $TORCHELASTIC_RESTART_COUNT */
        uint32_t local_world_size; /* ranks on this node; 0: world_size */
        uint32_t timeout_ms;       /* of every blocking call.  0: the daemon's option wait_ms, else
                                    * 60000, and longer for a rank that is late */
        uint32_t incarnation;      /* how often this rank was started before, such as torchrun's
                                    * restart count.  If a session with a lower incarnation has not
                                    * ended, this process takes the rank from it and fences it */
};

/*
 * Connects to the node's daemon. [blocks]  If the call fails, *ret_client is untouched.  zero_error(NULL) then
 * returns the sentence.  It always returns the sentence of this thread's last failed zero_connect() or
 * zero_layout_*(), or of a call that was refused because another thread waits.
 * ZERO_ECLOSED: no daemon listens at the socket.  ZERO_EPERM: the daemon refuses this user.  ZERO_EVERSION: the daemon
 * is of another release.  ZERO_ERANK: the rank lies outside its world.  ZERO_EINVAL names an option or a variable
 * that makes no sense.
 */
int zero_connect(const struct zero_options *options, struct zero_client **ret_client);
/*
 * Ends the session and frees the client.  All views and gradient pointers become invalid.  NULL is allowed.
 * Calls in which other ranks wait for this one end with ZERO_ELOSTRANK.
 */
void zero_close(struct zero_client *client);
/*
 * Leaves zero_close() to the end of the process.  exit(0) and a return of 0 from main() then close the client.  After
 * any other end the rank counts as lost, and a successor may go on.  The caller does not use the client any more, but
 * views stay valid until the end.  The end of a forked process changes nothing.  Never blocks.
 */
void zero_close_at_exit(struct zero_client *client);
/*
 * Declares that this rank has completed the job; zero_close() tells the daemon.  The job is finished when all ranks
 * have left in this way.  A finished job stays, to be read, exported or trained further.  A new job of the same user
 * may find job_limit or a node's memory used up.  If the places of finished jobs suffice, the daemon then drops the
 * job that finished first, and logs that.  If every rank passes keep false, the daemon drops the
 * job as soon as the last rank has left.  A daemon that restarts no longer knows which jobs are finished, and keeps
 * them.  Never blocks.
 * ZERO_ENOTATTACHED: the client is not a rank of a job.
 */
int zero_finish(struct zero_client *client, bool keep);
/*
 * Returns the sentence of the client's last error.  The client owns it; it is valid until the client's next call.
 * For NULL the call returns the sentence of the thread's last error without a client (zero_connect()).
 */
const char *zero_error(const struct zero_client *client);
/* Returns the name of a status code, such as "ELAYOUT", or its meaning. */
const char *zero_status_name(int status);
const char *zero_status_text(int status);
/*
 * Returns a descriptor that polls readable when a reply has come.  The library reads the reply; the caller does not.
 * The descriptor changes when a call connects again.  The call returns -1 for NULL.
 */
int zero_fd(const struct zero_client *client);
typedef void (*zero_tell)(void *arg, const char *text);
/*
 * Names a function that is called when a call of this rank has waited for 10 s, and again each minute.  The text says
 * for whom the call waits, and what that rank, node or disk has to do.  tell runs in the thread of the waiting call,
 * and must not use the client.  Without zero_on_wait() the text goes to standard error.  With tell NULL it goes
 * nowhere.
 */
void zero_on_wait(struct zero_client *client, zero_tell tell, void *arg);
/*
 * Ends the wait of the call that another thread is in, or else of the next call: it returns ZERO_ECLOSED.
 * The rank then counts as lost, as when its process ends, even after zero_close().  Any thread or signal handler may
 * call this until zero_close().
 */
void zero_interrupt(struct zero_client *client);

/* ---- attach ----------------------------------------------------------- */

struct zero_needs {
        uint32_t hold_groups; /* most groups held (fetched, not released) at once; ZERO_ALL
                               * for stages 1 and 2; 0: 1 */
        uint32_t push_groups; /* most gradients in flight at once.  ZERO_ALL: room for all; 0: 1.
                               * ZERO_AUTO: 2, or room for all if the job has one rank and its owners
                               * are on the rank's GPU.  Room for all takes at most an eighth of what
                               * is free there */
        enum zero_dtype grad_dtype;   /* of what the trainer writes to zero_grad() memory; 0:
                                       * ZERO_FP32 */
        enum zero_dtype reduce_dtype; /* of gradients between nodes, the same on all ranks; 0: ZERO_FP32.
                                       * A sum is rounded to it once.  A sum beyond the range of
                                       * ZERO_FP16 (65504) counts as not finite, and the step is
                                       * skipped: scale the loss */
        enum zero_accumulate accumulate; /* in owners' sums of gradients, the same on all ranks: see the enum */
        bool private_views;           /* zero_fetch() returns views that are writable and keep their
                                       * address; in host memory only */
        enum zero_on_lost on_lost_rank; /* of the job: ZERO_LOST_FAIL if any rank asks for it */
        const char *device;           /* of views and gradients.  NULL: host memory; "cuda:N": this
                                       * process's N-th GPU, if the daemon has it too */
        const struct zero_stash *stash; /* activation checkpoints; NULL: none */
};

/* A file of a base, in read-only memory. */
struct zero_file {
        const void *data;
        uint64_t bytes;
};

/*
 * Maps files of frozen weights read-only, for many ranks and jobs that read them (LoRA, arXiv 2106.09685). [blocks]
 * while another process brings the base in.  The node has one copy of the base: the files' bytes in this order.  All
 * processes of one user that name files of the same contents share it.  The first process that names the contents
 * copies them into the service's memory.  The service seals that memory against every change and checks the hash of
 * its contents.  The service itself opens none of the files, for a user's file system may never answer.  A file that
 * changes later changes nothing in the base.
 * Call it before zero_attach(), once for a client.  The layout of the job then names the base by its hash.
 * ZERO_ELAYOUT: the ranks of a job, or those that go on with it, name files of other contents.
 * A user's jobs on one base, up to 64, count once against the daemon's option job_limit.
 * The memory stays where it is, even if the daemon is lost.  A new daemon gets the base from the first client that
 * comes back.  After zero_close() the caller owns the memory, and may munmap() it from ret_files[0].data to the end
 * of the last file.  The node's copy goes with the last client, and with the last process that still maps it.
 * On a cluster each node has a copy, from the files that its own processes name.
 * ZERO_ECONFLICT: a file changes while it is read.  ZERO_EQUOTA: the daemon's option base_limit allows the
 * user no such base.  ZERO_ESHM: the node has not that much memory; if it never has, the call fails before it reads
 * anything.  ZERO_EDEADLINE names the process that brings the base in.
 */
int zero_base(struct zero_client *client, const char *const *paths, uint32_t n,
              struct zero_file *ret_files);

/* A base on a GPU. */
struct zero_gpu_base {
        void *data;                /* of the first file; the others lie behind it as in host memory */
        uint64_t bytes;            /* from data to the end of the last file */
        void (*unmap)(void *data); /* waits for the GPU's work, then unmaps */
};

/*
 * Maps the client's base on a GPU. [blocks] while the copy is made.  device is "cuda:N": this process's N-th GPU, if
 * the daemon has it too.  The GPU has one copy for all processes of the user.  The copy counts against the daemon's
 * option gpu_windows.  It goes with the last client that has it, and with the last process that still maps it.
 * Call it between zero_base() and zero_attach(), once.
 * The memory stays where it is, even if the daemon is lost.  The call that connects to a new daemon waits for the
 * GPU's work and then maps the new daemon's copy at the same address.  Meanwhile other threads enqueue no work.  If a
 * second copy finds no memory, the first one stays.
 * The client owns the memory until zero_close().  After that the caller owns it, and calls unmap(data).
 * The GPU maps the copy for reading: a kernel that writes to it ends all work of this process on the GPU.  Some
 * drivers map all memory writable; then a write changes what all processes of the user read.
 * ZERO_EGPU: the daemon does not use the GPU, or its driver exports no descriptors.  ZERO_EVERSION: the daemon is of a
 * release without such copies.  ZERO_EQUOTA, ZERO_ENOMEM: there is no memory for the copy.  After an error the base in
 * host memory stays.
 */
int zero_base_copy(struct zero_client *client, const char *device, struct zero_gpu_base *ret_copy);

/*
 * Puts together the layout of a job whose ranks work on different groups. [blocks] until all ranks have called.  The
 * stages of a pipeline are such ranks (GPipe, arXiv 1811.06965).  Each rank passes the groups that it works on, which
 * list no ranks.  The ranks of a group are those that bring it, and they all bring it alike.  A tensor that several
 * stages share belongs to one group that they all bring.
 * *ret_layout has all groups in the order of their first stage.  Groups of one stage are in the order of their first
 * rank, and groups of one rank in the order of its part.  The caller attaches with the layout, finds its tensors there
 * by name, and frees it.
 * A job that exists keeps its layout: a rank that returns brings the part that it brought before.
 * ZERO_ELAYOUT says which ranks bring what differently, or how the part differs from the job's.
 * ZERO_ERANK: another process of the rank has called, or ranks have another world size.
 * ZERO_EDEADLINE names the ranks that have not called.
 */
int zero_compose(struct zero_client *client, const struct zero_layout *part, uint32_t stage,
                 struct zero_layout **ret_layout);
/*
 * Joins the job as the rank given to zero_connect(), and creates the job if it is new. [blocks] until all ranks have
 * attached.  All ranks pass the same layout, and the call copies it.  Ranks of one node may have different devices.
 * While a job runs, ranks of another world size wait until the ranks of the old one have left.  If the daemon is lost
 * meanwhile, a rank connects again.
 * needs NULL stands for the default of each member.  An observer passes NULL for layout and needs, and gets the job's
 * layout from zero_client_layout().
 * ZERO_ELAYOUT names the first difference between layouts; every rank that is attaching gets it, and all may attach
 * again with one layout.  ZERO_EWINDOW says how large the window must be.  ZERO_ERANK says who has the rank.
 * ZERO_EGPU says why the device cannot be used.  ZERO_ECONFLICT says what the job's other ranks on this node push.
 */
int zero_attach(struct zero_client *client, const struct zero_layout *layout,
                const struct zero_needs *needs);
/* Returns the number of committed steps. */
uint64_t zero_steps(const struct zero_client *client);
/*
 * Returns the bytes that this rank, or its predecessor, kept with the last decided step (zero_step_options.blob).
 * *ret_bytes is their number, or 0 if none were kept.  The client owns them; they are valid until its next
 * zero_step() or abort.
 */
const void *zero_blob(const struct zero_client *client, size_t *ret_bytes);
/*
 * Returns the number of micro-batches of a group that the service has accepted from this rank in the current step.  A
 * rank that takes the place of a dead rank begins with what the dead rank pushed.  zero_push() of a micro-batch that
 * was accepted already changes nothing, so the successor may go through the step again from its start.
 */
uint32_t zero_accepted(const struct zero_client *client, uint32_t group);
/* Returns the loss scale that the next zero_step() should use (dynamic loss scaling). */
double zero_loss_scale(const struct zero_client *client);
/* Returns the job's layout.  The client owns it; NULL before zero_attach(). */
const struct zero_layout *zero_client_layout(const struct zero_client *client);

/* ---- one step --------------------------------------------------------- */

/*
 * Orders a call behind work that this process has enqueued on a GPU.  The call takes effect when all work that is on
 * the stream at the time of the call is done.  NULL, which host memory always has, says that the work is done already.
 * An ordered call does not wait for the GPU.  But if 64 such calls are under way, it waits [blocks] until one of them
 * has taken effect.  ZERO_EGPU: the GPU failed.
 * The driver may keep this process's events from a daemon of another user, or with another /dev/shm.  The daemon's log
 * and zeroctl status say so.  Then the call itself waits for that work [blocks], and the thread enqueues nothing for
 * the GPU meanwhile.  ZERO_EDEADLINE names what the call waited for; nothing was done, and the call may be made again.
 */
struct zero_sync {
        void *stream; /* cudaStream_t of needs.device; NULL: the default one */
};

/*
 * Returns a read-only view of a group's parameters at the current version, in the
 * group's dtype, laid flat (zero_layout_offset()). [blocks]  The values are complete: no stream
 * need wait for them.  The view is valid until zero_release(), zero_step() or ZERO_EABORTED.
 * A group that is fetched several times is held until as many releases; the last release says
 * what its end is ordered behind.  Writing to the view is a segmentation fault; on a GPU it would
 * change what others see.
 * ZERO_EHELD: as many groups are held as needs.hold_groups says.
 *
 * With needs.private_views a group's view has the same address whenever the group is held, from
 * zero_attach() to zero_close().  The caller may write to it: that changes the caller's copy
 * alone, and only until the last zero_release(), zero_step() or ZERO_EABORTED.  When
 * the group is not held, touching the view is a segmentation fault.  Each first fetch of a group
 * maps it, each last release unmaps it.
 */
int zero_fetch(struct zero_client *client, uint32_t group, const void **ret_view);
/*
 * Asks the daemon to gather a group.  The call does not wait, and never fails for lack of room.  The group takes a
 * slab of the window that no rank holds; without such a slab the call does nothing.  A rank that prefetches declares
 * one group more in needs.hold_groups than it holds at once.
 */
int zero_prefetch(struct zero_client *client, uint32_t group);
/*
 * Ends one zero_fetch() of a group; does not wait, except as struct zero_sync says.  After the last release
 * the view is not valid any more, and its memory may get another group.  sync: of reading the view.
 * ZERO_ENOTHELD: the group is not held.
 */
int zero_release(struct zero_client *client, uint32_t group, struct zero_sync *sync);

/*
 * Returns memory for one gradient of a group, laid flat like the group, in needs.grad_dtype. [blocks] until a slot is
 * free.  Its contents are undefined.  The caller owns the memory until zero_push().  A second call before the push
 * returns the same memory.
 * ZERO_EORDER: no slot can become free, because the caller keeps all of them.  zero_norm() and zero_step() also
 * return ZERO_EORDER, with the name of the group, if a gradient was not pushed before.
 */
int zero_grad(struct zero_client *client, uint32_t group, void **ret_grad);
/*
 * Hands a group's gradient over.  The call does not wait, except as struct zero_sync says.  present has one byte for
 * each tensor of the group: 0 for a tensor without a gradient in this step.  NULL stands for a gradient of all
 * trainable tensors.  A push with 0 for every trainable tensor needs no zero_grad() and takes no slot.
 * The ranks of a node get their slots back when all of them have pushed the group.  So a rank that has nothing for
 * some groups pushes those before it waits for slots for the others.  Some groups have a slot of their own
 * (needs.push_groups: ZERO_ALL, or a number whose slots would take as much memory).  Such a slot may come back only
 * when zero_grad() asks for it, or when the step is over.
 * last is false while more micro-batches of this step follow: the owners add up their gradients.  Only the sum over
 * ranks is divided (zero_layout_group()).  So divide the loss of each micro-batch by their number for the mean.
 * A later call on the same client reports the daemon's refusal of a push.  A later call also reports that the daemon
 * is lost, as after zero_release() and zero_prefetch().
 */
int zero_push(struct zero_client *client, uint32_t group, const uint8_t *present, bool last,
              struct zero_sync *sync);

#include "zero_sets.h"

struct zero_step_options {
        const struct zero_set *sets;   /* indexed by ZERO_PLANE_SET */
        uint32_t n_sets;               /* 1 to ZERO_SET_MAX.  0: the step ends without an update, its
                                        * gradients are dropped, and the version stays */
        double clip_norm;              /* > 0: clip to this global norm; 0: no clipping */
        double loss_scale;             /* what the loss was multiplied by; 0: 1 */
        uint32_t growth_interval;      /* steps without overflow until the loss scale
                                        * doubles; 0: the scale stays as it is */
        const void *blob;              /* kept for this rank with the step, committed or skipped;
                                        * zero_blob() gives it back.  A trainer may keep the place of
                                        * its data loader.  NULL: nothing */
        size_t blob_bytes;             /* at most ZERO_BLOB_MAX */
        struct zero_sync *sync;        /* of reading what is still held */
};

struct zero_result {
        uint64_t version; /* after the step */
        bool skipped;     /* a gradient was not finite, or n_sets is 0: nothing was updated */
        uint32_t skips;   /* steps in a row, this one included, that this client saw skipped because
                           * a gradient was not finite.  With dynamic loss scaling a few are usual.
                           * A loop over versions ends when there are too many */
        double grad_norm; /* of the mean gradient, before clipping, loss scale taken out */
        double loss_scale; /* to use next (dynamic loss scaling) */
};

/*
 * Finishes the reduction, and returns the global gradient norm and true in *ret_finite if all gradients are finite.
 * [blocks] for all ranks.  The norm has the loss scale left in.  The call updates nothing yet.
 */
int zero_norm(struct zero_client *client, double *ret_norm, bool *ret_finite);
/*
 * Returns the Euclidean norms of tensors first to first + count - 1. [blocks]  The tensors' owners compute one number
 * for each tensor, and nothing is gathered.  plane is MASTER, GRAD, or a moment (EXP_AVG and the like).  The bits of a
 * norm do not depend on owners and nodes.  ret_norms has count numbers, which are undefined after an error.  A norm is
 * NaN if some element is not finite, and 0 where the tensor has nothing:
 *
 *   GRAD and moments of a frozen tensor, and any plane of a tensor of bytes
 *   GRAD of a tensor without a gradient in this step
 *   a moment that the tensor's optimizer does not have
 *
 * MASTER and moments: any client asks at any time, observers too.  All norms are of one version.
 * GRAD: norms are of the step's mean gradient over all ranks and micro-batches, before clipping.  The loss scale is
 * left in, as with zero_norm().  A rank asks between its last zero_push() and its zero_step(), and pushes nothing more
 * in the step (ZERO_EORDER).  The call waits until each rank has pushed its last gradient of every group, or has
 * called zero_norm(), zero_step() or this.  So no other rank has to call it.
 * ZERO_EDEADLINE names a rank that the norms of GRAD wait for; the call may be made again, or the step ended.
 * ZERO_EABORTED: as from zero_step().
 * ZERO_EPERM: an observer asks for norms of GRAD.  ZERO_EINVAL: the plane has no norms.
 * ZERO_ERANGE: the layout does not have these tensors.  ZERO_EBUSY: shards are being moved, try again.
 * ZERO_EBUSY, for more than 512 tensors alone: in each of 8 tries a step ended between two pieces of the norms.
 * ZERO_EPEER: an owner's node was lost meanwhile, ask again when it is back.
 */
int zero_tensor_norms(struct zero_client *client, enum zero_plane plane, uint32_t first, uint32_t count,
                      double *ret_norms);
/*
 * Reduces n numbers, such as a loss or a count, over all ranks, element by element. [blocks] for all ranks.  n is at
 * most ZERO_VALUES_MAX.  Every rank gets the results, whose bits depend on the numbers alone: sums are double, in the
 * order of ranks.  ret_values may be values.  name has at most 63 bytes.  All ranks reduce the same things in the same
 * order.
 * ZERO_ECONFLICT: another rank reduces something else, or ends the step meanwhile.
 * ZERO_EDEADLINE names a rank that has not called; the call may be made again.
 * A rank that is started again begins its step anew, while the others may have reduced already.  If ranks reduce in an
 * attempt with such a rank, or in the attempt after it, all ranks get ZERO_EABORTED, as from zero_step().
 */
int zero_all_reduce(struct zero_client *client, const char *name, enum zero_reduction op, uint32_t n,
                    const double *values, double *ret_values);
/*
 * Says how this rank is going to end the step, so that owners update eager groups (zero_layout_eager()) ahead. [blocks]
 * for the daemon's reply alone.  From now on owners update an eager group as soon as all ranks have pushed its last
 * gradient.  Call it before the step's first push; one rank's call is enough.  It ends nothing and waits for no rank.
 * In this attempt zero_step() takes the same values only.  zero_ahead() ignores blob and sync.
 * A gradient that is not finite still skips the whole step: the updates ahead are undone, as they are by ZERO_EABORTED.
 * A client may read or write planes before the step is decided, as zero_get() and a checkpoint do.  It finds the
 * values before the step, and updates ahead end for this step.
 * ZERO_ECONFLICT, from zero_step(), names a rank that passes other values.
 * ZERO_EINVAL: no group is eager, the step has no sets, or it clips or scales the loss.  A norm and an overflow are
 * known only when all gradients are.
 */
int zero_ahead(struct zero_client *client, const struct zero_step_options *step);
/*
 * Ends the step: when all ranks have called, the owners update. [blocks] until the decision.  The update itself
 * overlaps what comes next.  The rank's leases end.  ret_result may be NULL.
 * Groups that this rank has not pushed count as without gradient.  The daemon logs a warning about groups that no rank
 * pushes in 8 steps; zeroctl shards shows the last update of each group.
 * All ranks pass the same values.  ZERO_ECONFLICT names the rank that passes others.
 * ZERO_EINVAL, on every rank: a trainable tensor uses a set that the step does not have; the text names the tensor.
 * The step can then be ended by calling again.
 * ZERO_EABORTED, from this or an earlier call of the step: nothing was updated; the caller replays the step from its
 * first fetch.  Leases and gradients are gone.
 * ZERO_EDEADLINE leaves the step as it is and names the rank that the step waits for.
 * Until the step is over, zero_norm(), zero_tensor_norms() of GRAD, zero_all_reduce() and zero_ahead() return
 * ZERO_EORDER to this rank.
 * ZERO_ELOSTRANK: a rank has left by zero_close(), or, with ZERO_LOST_FAIL, its session ended otherwise; the step
 * cannot end without it.  zero_norm(), zero_tensor_norms() of GRAD, zero_all_reduce() and a wait for gradient memory
 * return this, too.  Calls of the stash return it for a rank that left, and a fetch for a session that ended.  They all
 * return it at once, and ZERO_EABORTED when that rank, or its successor, has attached.  With ZERO_LOST_WAIT calls wait
 * for the successor of a rank that has not left, and end with ZERO_EDEADLINE.
 */
int zero_step(struct zero_client *client, const struct zero_step_options *step,
              struct zero_result *ret_result);

/* ---- stash: activation checkpoints -------------------------------------- */

/*
 * The service keeps what the backward pass needs again: inputs of blocks that are computed a second time (activation
 * checkpointing).  A set is the ranks that hold the same bytes, such as those of a tensor-parallel group.  They keep
 * each byte once: each rank writes its part, and reads the whole.  ZeRO-R calls this P_a (SC20, section 6.1): a rank
 * keeps the bytes of all checkpoints divided by the ranks of the set.  Ranks of one node map one copy.
 * Parts on other nodes come once a node, when a rank reads.  The entry that was written before the one that is read
 * comes with it, because the backward pass reads in the opposite order.
 * zero_attach() reserves the memory: where views and gradients are (P_a), or in host memory (P_a+cpu).  A write to host
 * memory never fails for lack of a gap while enough bytes are free (M_D, section 6.3).  On a GPU an entry lies in one
 * piece, and needs a gap of its size.  An entry takes whole units of 4096 bytes, or of bytes / 32768 if that is more.
 * Entries end with the step, and with ZERO_EABORTED.
 */

/* A rank's stash, declared alike on all ranks of the set.  zero_attach() copies it. */
struct zero_stash {
        const uint32_t *ranks; /* the set, ascending, this rank among them.  NULL: this rank alone, as
                                * for sequence-parallel ranks, whose bytes differ.  No rank is in two
                                * sets.  A step cannot end without a rank of a set of several that is
                                * lost: ZERO_LOST_FAIL */
        uint32_t n_ranks;
        uint64_t bytes;        /* of all entries at once, each counted whole */
        uint64_t entry_bytes;  /* of the largest entry; 0: bytes.  If ranks of the set are on several
                                * nodes, each node keeps room for two whole entries more */
        enum zero_stash_where where; /* the ranks of the set on one node name one place (ZERO_ECONFLICT);
                                      * ranks on several GPUs may name ZERO_STASH_HOST */
        bool unchecked;        /* by default all ranks of a set hash their bytes in the first step, and
                                * ZERO_ECONFLICT names two ranks whose bytes differ */
};

/*
 * Writes this rank's part of an entry. [blocks]  src is the whole entry, and bytes its size, at least 1.  Each rank of
 * the set writes each key once a step.
 * With needs.device src may be in host memory or on that GPU.  The GPU copies the part when the stream comes to the
 * copy (sync NULL: the default stream), and src stays as it is until then.  The call waits for the stream only in the
 * first step, for the hash, or if src is host memory that is not pinned.
 * Without room the call waits for ranks that have not released entries which this rank has released.  On a GPU the
 * daemon may also have to move entries together, and waits for ranks that use one of them.
 * ZERO_EORDER: this rank has written the key already in this step, or has no stash.
 * ZERO_EWINDOW says how many bytes the stash needs; nothing was written.
 * ZERO_ECONFLICT: another rank of the set has written another number of bytes, or, in the first step, other bytes.
 */
int zero_stash_write(struct zero_client *client, uint64_t key, const void *src, uint64_t bytes,
                     struct zero_sync *sync);
/*
 * Returns a read-only view of an entry that this rank has written. [blocks]  The call waits until all ranks of the set
 * have written their parts, on their GPUs too.  The view is on the GPU if the stash is there.  It is valid until
 * zero_stash_release(), zero_step() or ZERO_EABORTED.  A rank reads an entry again only after the release.
 * ZERO_EORDER: this rank has not written the entry in this step, or has released it for the last time.
 */
int zero_stash_read(struct zero_client *client, uint64_t key, const void **ret_view,
                    uint64_t *ret_bytes);
/*
 * Ends a view of an entry.  The call does not wait, except as struct zero_sync says: sync orders the end behind
 * reading the view.  With last true this rank does not read the entry again; last may be true without a read.  The
 * memory is free when all ranks of the set have said so, and the key may then be written again.
 * ZERO_ENOTHELD: this rank has no view of the entry, and last is false; or it has no stash.
 */
int zero_stash_release(struct zero_client *client, uint64_t key, bool last, struct zero_sync *sync);

/* ---- reading and writing state ---------------------------------------- */

/*
 * Copies count elements of one tensor's plane between the service and the caller's memory. [blocks]  The first of them
 * is element first.  MASTER, moments (EXP_AVG and the like) and EMA are fp32.  SERVE has the group's dtype, and can
 * only be read.  STEP and SET are one uint64_t.  Observers get and put as well: zeroctl import is one.
 * zero_put() is for step boundaries (no gradient pushed yet) and for one writer.  After a write to MASTER every node
 * gathers the group again.  After a write to STEP the tensor's bias correction continues from there.
 * SET selects the hyperparameter set of zero_step() that applies to a trainable tensor.  It starts as zero_tensor.set.
 * A put of SET holds from then on, even after a restart of the service.  It may come at any time before the writer's
 * own zero_step(), even after a push.
 * After ZERO_EABORTED the values may have been written or not.  After any other error of a put of more than a MiB some
 * may be written: several pieces are under way at once.
 * ZERO_ERANGE: the elements lie outside the tensor, STEP is above 2^39 - 1, or SET is not below ZERO_SET_MAX.
 * ZERO_EORDER: a rank has pushed a gradient in this step, or, for SET, the writer has called zero_step().
 */
int zero_put(struct zero_client *client, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, const void *src);
int zero_get(struct zero_client *client, uint32_t tensor, enum zero_plane plane, uint64_t first,
             uint64_t count, void *dst);

/*
 * Gives a new job its first values: rank 0 puts values[t] into MASTER of tensor t. [blocks] until all ranks have
 * called.  values[t] is as zero_put() takes it; NULL stands for the values of zero_tensor.init.  values has
 * zero_layout_tensors() pointers.  Only rank 0 reads it; other ranks may pass NULL.  Later fetches return the values.
 * If the job's ranks have ended a step, the job keeps what it has, and the call returns at once.  So a trainer calls
 * this after each zero_attach().
 */
int zero_first_values(struct zero_client *client, const void *const *values);

/* A run of values of a tensor's plane in a file, one behind the other, little-endian. */
struct zero_values {
        uint32_t tensor;
        enum zero_plane plane; /* MASTER, a moment or EMA */
        enum zero_dtype dtype; /* in the file: fp32, bf16 or fp16; for a group of bytes its own */
        uint64_t first, count; /* elements, as of zero_put() */
        uint64_t at;           /* byte of the file */
};

/*
 * Puts n runs of values out of a file, such as safetensors, as zero_put() would. [blocks] for at most the timeout
 * without progress.  The client reads the file by its descriptor, a piece at a time, in the order of the runs.
 * Meanwhile the service takes earlier pieces in and widens 16-bit values exactly.  The client has at most 20 MiB of the
 * file in memory, the service 8.  A thread reads what the page cache does not have, around the cache; it reads ahead if
 * runs are in the order of the file.  The thread ends with the call, or later, when a slow disk answers it.
 * The call checks all runs before it writes the first value.  After an error some values may be written; the text names
 * the tensor.
 * ZERO_ECONFLICT: the file is too short, or becomes so meanwhile.  ZERO_EIO: the file cannot be read.
 * ZERO_EDEADLINE: the disk, or the service, does not answer.
 */
int zero_put_file(struct zero_client *client, int fd, const struct zero_values *values, uint32_t n);

/* ---- following a job -------------------------------------------------- */

/* A whole version of a job's parameters.  Its memory is read-only, and all readers of a node share it. */
struct zero_weights {
        uint64_t version; /* the number of committed steps */
        const void *data; /* of all groups: see zero_weights_group(); valid until zero_unfollow() */
        uint64_t bytes;
        uint32_t copy;    /* of the node, for zero_unfollow() */
};

/*
 * Waits for a whole version of the job's parameters, and holds it. [blocks]  The version is at least `least`, and at
 * most `most`.  least 0 and most UINT64_MAX take the newest; least one above a version waits for a newer one; equal
 * numbers wait for that version.  All parameters are those between two steps, in their groups' dtypes, bit for bit as
 * the ranks fetch them, unless zero_follow_form() says otherwise.  Readers need not take every version.  Trainers wait
 * for no reader: an update waits at most for the few parts that travel to a reader's node, or are coded for it, at
 * that moment.
 * timeout_ms is for this call, if that is less than the timeout given to zero_connect(); 0: that one.
 * The client is an observer (ZERO_OBSERVER) that is attached, on any node of the cluster.  The client may hold
 * several versions at once.  A node has one copy of a version for all readers of a form, and as many copies of a job
 * as its option follow_copies says.  If other versions are held in all of them, the call waits, and then names their
 * readers.
 * Another user's client needs the grant of the job's owner (zeroctl grant).  The grant allows zero_attach(), this call
 * and zero_unfollow(); all other calls about the job return ZERO_EPERM.  When the grant is revoked, a call that waits
 * returns ZERO_EPERM, and later calls ZERO_ECLOSED.  What the client holds stays readable until zero_close().
 * A zero_put() between two steps changes parameters within a version; the next zero_follow() gives the changed ones.
 * Steps may follow each other faster than a version is read: the call then goes on with the newest, until its deadline.
 * ZERO_EGONE: the job is past `most`, and no copy has such a version.  ZERO_EDEADLINE: there is no such version yet,
 * and the call may be made again.  ZERO_ENOJOB: the job was dropped, or a checkpoint has replaced it: connect
 * and attach a new client.
 * ZERO_EPERM: the client is a rank, follow_copies is 0, or the user's grant was revoked.
 * ZERO_ESHM, ZERO_ENOMEM: the node has no memory for a copy.  ZERO_EQUOTA: follow_limit allows the job's user no more.
 * ZERO_EVERSION: the daemon is of a release that does not know the call.
 */
int zero_follow(struct zero_client *client, uint64_t least, uint64_t most, uint32_t timeout_ms,
                struct zero_weights *ret_weights);
/* A group of a reader's form. */
struct zero_form {
        uint32_t group;
        /* 0: the group's own.  An fp32 group may be read in bf16 or fp16, rounded to nearest even; a bf16 or fp16
         * group in fp32, exactly. */
        enum zero_dtype dtype;
};
/*
 * Says which groups, and in which dtypes, all later zero_follow() calls of this client bring; without this call all
 * groups in their own.  Groups that are left out take no memory.  All groups that are in the form travel to
 * the node in their own dtypes, and are converted there.  The order of the groups is of no account.
 * ZERO_ENOGROUP, ZERO_EINVAL: n is 0, a group is named twice, or nobody converts the group to that dtype.
 * ZERO_EORDER: zero_follow() was called before; another client may have another form.
 * ZERO_EPERM: the client is a rank.  ZERO_EVERSION: the daemon is of a release that lets nobody follow a job.
 */
int zero_follow_form(struct zero_client *client, const struct zero_form *groups, uint32_t n);
/*
 * Returns a group's parameters in a version, in the dtype of the form, laid flat (zero_layout_offset(), in elements).
 * NULL: there is no such group, or the form lacks it.  The memory is the service's, and valid until zero_unfollow() or
 * zero_close().
 */
const void *zero_weights_group(const struct zero_client *client, const struct zero_weights *weights,
                               uint32_t group);
/* Ends one hold of a version. [blocks]  Its memory then takes later versions.  ZERO_ENOTHELD: the client has no hold. */
int zero_unfollow(struct zero_client *client, const struct zero_weights *weights);

/* ---- the service ------------------------------------------------------ */

/*
 * Asks the daemon a question, and returns its answer as a JSON text. [blocks]  The caller frees *ret_json with
 * zero_free().  argument is a job's name or NULL.  what is one of these:
 *
 *   "status", "jobs", "shards", "ping", "checksum", "config", "drop"
 *   "members"               the owners
 *   "moves"                 how far jobs have moved to the owners
 *   "progress"              of a checkpoint or restore
 *   "checkpoint", "restore" begins one
 *   "versions"              who follows a job, and which versions are in memory for that
 *   "grants"                which other users may follow it
 *   "grant", "revoke"       changes that; the argument is a JSON object with "job" and "user", a number
 *
 * The argument of "checkpoint" and "restore" is a JSON object.  It has "job", "directory" (an absolute path), "seen",
 * for checkpoints "keep" and "every", and for restores "convert".  "convert" is "job", for the formats of the job that
 * is there (zero_layout_state()), or names them as "8bit,bf16+8", of the moments and, behind the comma, of the master
 * weights.  Without it a job of other formats than the checkpoint is not replaced.  "seen" is "DEVICE:INODE PATH",
 * both numbers as stat() tells them, in hexadecimal.  PATH is the directory, or the nearest one above it that the
 * caller sees.  The daemon may have other mounts, such as its own /tmp under systemd.  It compares nothing without
 * "seen".
 * If the daemon is lost meanwhile, the call connects and asks once more.  It leaves ZERO_EABORTED to the step's next
 * call.
 * ZERO_EINVAL: the daemon sees another directory at PATH, or what or argument makes no sense.
 * ZERO_EBUSY: a user has 8 questions in flight that all nodes answer ("checksum", "ping", "moves"), or 2 of "shards".
 * ZERO_EBUSY: 64 questions of "status" wait for a driver of GPUs.
 * ZERO_EVERSION: "grant" or "convert" was asked for while a node is of the release before, or was not up yet.
 * ZERO_EQUOTA: 64 users have a grant.
 */
int zero_query(struct zero_client *client, const char *what, const char *argument,
               char **ret_json);
/* Frees what zero_query() returned, by the library's own free().  NULL is allowed. */
void zero_free(void *memory);
/* Returns the library's version as a number, as ZERO_LIBRARY_VERSION is the header's. */
uint32_t zero_library_version(void);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
