/*
 * Streams: the thread that waits runs the enqueued work, in order.  Until then nothing happens, so
 * a reader that comes too early gets old bytes, and a writer that comes too early spoils them.
 */
#include "tests/support/fake_gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/kernels.h"
#include "proto/dtype.h"
#include "tests/support/adamw.h"

struct work {
        struct work *next;
        void (*run)(const struct work *w);
        struct update_piece *updates; /* [n] */
        struct zero_cuda_reduce reduce;
        struct product product;
        float by;
        enum format format;
        uint32_t dither;
        uint16_t *served;
        void *lists; /* that these lie in */
        enum zero_dtype to, from;
        void *dst;
        size_t n, k;
        const void *src[ZERO_CUDA_SUM_MAX];
};

struct stream {
        struct stream *next;
        pthread_mutex_t mutex;
        struct work *work, **last;
        int gpu;
};

static pthread_mutex_t streams_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;
static _Atomic uint64_t waits;
static _Atomic bool failed;

int fake_state(void)
{
        return failed ? -EIO : 0;
}

static void finish(struct stream *s)
{
        pthread_mutex_lock(&s->mutex);
        for (struct work *w = s->work, *next; w; w = next) {
                next = w->next;
                w->run(w);
                free(w->lists);
                free(w);
        }
        s->work = NULL;
        s->last = &s->work;
        pthread_mutex_unlock(&s->mutex);
}

void fake_finish_all(void)
{
        pthread_mutex_lock(&streams_mutex);
        for (struct stream *s = streams; s; s = s->next)
                finish(s);
        pthread_mutex_unlock(&streams_mutex);
}

int fake_stream_new(void **ret_stream)
{
        struct stream *s;
        int r = fake_gpus() == 0 ? -ENODEV : fake_state();

        fake_copy_off_loop("stream_new");
        if (r < 0)
                return r;
        s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        pthread_mutex_init(&s->mutex, NULL);
        s->last = &s->work;
        s->gpu = fake_chosen("stream_new");
        pthread_mutex_lock(&streams_mutex);
        s->next = streams;
        streams = s;
        pthread_mutex_unlock(&streams_mutex);
        *ret_stream = s;
        return 0;
}

int fake_stream_wait(void *stream)
{
        uint64_t fault = fake_setting("FAKE_GPU_FAULT", 0);

        fake_copy_off_loop("stream_wait");
        fake_chosen("stream_wait");
        if (fake_gpus() == 0)
                return -ENODEV;
        if (fault && ++waits >= fault)
                failed = true;
        if (!failed)
                finish(stream);
        return fake_state();
}

void fake_stream_free(void *stream)
{
        struct stream *s = stream, **at = &streams;

        if (!s)
                return;
        fake_off_loop("stream_free");
        fake_chosen("stream_free");
        finish(s);
        pthread_mutex_lock(&streams_mutex);
        while (*at != s)
                at = &(*at)->next;
        *at = s->next;
        pthread_mutex_unlock(&streams_mutex);
        pthread_mutex_destroy(&s->mutex);
        free(s);
}

int fake_stream_gpu(const void *stream)
{
        return ((const struct stream *)stream)->gpu;
}

/* ---- enqueued ---------------------------------------------------------------- */

static int enqueue(struct stream *s, const struct work *w)
{
        struct work *copy;

        fake_copy_off_loop("work for a stream");
        copy = malloc(sizeof *copy);
        if (!copy) {
                free(w->lists);
                return -ENOMEM;
        }
        *copy = *w;
        copy->next = NULL;
        pthread_mutex_lock(&s->mutex);
        *s->last = copy;
        s->last = &copy->next;
        pthread_mutex_unlock(&s->mutex);
        return 0;
}

/* 0: go on; 1: there is nothing to do. */
static int check(const struct stream *s, size_t n)
{
        if (n == 0)
                return 1;
        if (fake_gpus() == 0)
                return -ENODEV;
        if (!s || s->gpu != fake_chosen("an operation"))
                fake_die("GPU %d is in use, the stream is of another", fake_gpu_in_use);
        return fake_state();
}

static void *inside(const struct stream *s, const void *p, size_t bytes)
{
        return p ? fake_inside(p, bytes, s->gpu, FAKE_KERNEL) : NULL;
}

static void run_update(const struct work *w)
{
        cuda_update(w->updates, w->n, NULL);
}

/* Bytes of n elements behind the first `skip` of a record, and of the rest of their records. */
static size_t record_bytes(enum format format, size_t skip, size_t n)
{
        if (format == FORMAT_FP32)
                return n * sizeof(float);
        return format_bytes(format, (skip + n + FORMAT_STEP - 1) / FORMAT_STEP * FORMAT_STEP);
}

static void update_inside(const struct stream *s, struct update_piece *u)
{
        size_t skip = format_is_split(u->format[0]) ? u->skip : 0;

        if (u->n == 0)
                return;
        for (uint32_t k = 0; k < update_planes(u->rule, &u->scalars); k++) {
                size_t out = record_bytes(update_out_format(u, k), u->skip, u->n);

                u->in[k] = inside(s, u->in[k], record_bytes(u->format[k], u->skip, u->n));
                u->out[k] = inside(s, u->out[k], out);
        }
        for (uint32_t i = 0; i < u->k && i < UPDATE_SOURCES; i++)
                u->grad[i] = inside(s, u->grad[i], dtype_bytes(u->from, u->n));
        if (u->serve)
                u->serve = inside(s, u->serve, dtype_bytes(u->serve_dtype, skip + u->n));
}

int fake_update(const struct update_piece *pieces, size_t n, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_update, .n = n };
        int r = check(s, n);

        if (r)
                return r < 0 ? r : 0;
        for (size_t i = 0; i < n; i++)
                if (pieces[i].rule != pieces[0].rule)
                        return -EINVAL;
        w.lists = w.updates = malloc(n * sizeof *pieces);
        if (!w.updates)
                return -ENOMEM;
        memcpy(w.updates, pieces, n * sizeof *pieces);
        for (size_t i = 0; i < n; i++)
                update_inside(s, &w.updates[i]);
        return enqueue(s, &w);
}

static void run_cast(const struct work *w)
{
        cuda_cast(w->to, w->dst, w->from, w->src[0], w->n, NULL);
}

int fake_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src, size_t n,
              void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_cast, .to = to, .from = from, .n = n };
        int r = check(s, n);

        if (r)
                return r < 0 ? r : 0;
        w.dst = inside(s, dst, dtype_bytes(to, n));
        w.src[0] = inside(s, src, dtype_bytes(from, n));
        return enqueue(s, &w);
}

static void run_sum(const struct work *w)
{
        cuda_sum(w->to, w->dst, w->from, w->src, w->k, w->n, NULL);
}

int fake_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src, size_t k,
             size_t n, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_sum, .to = to, .from = from, .n = n, .k = k };
        int r = k < 1 || k > ZERO_CUDA_SUM_MAX ? -EINVAL : check(s, n);

        if (r)
                return r < 0 ? r : 0;
        w.dst = inside(s, dst, dtype_bytes(to, n));
        for (size_t i = 0; i < k; i++)
                w.src[i] = inside(s, src[i], dtype_bytes(from, n));
        return enqueue(s, &w);
}

static void run_reduce(const struct work *w)
{
        cuda_reduce(&w->reduce, NULL);
}

static bool reduce_is_valid(const struct zero_cuda_reduce *r)
{
        for (size_t i = 0; i < r->n_pieces; i++)
                if (r->pieces[i].k > ZERO_CUDA_SUM_MAX ||
                    (r->norm && r->pieces[i].n > ZERO_CUDA_NORM_MAX))
                        return false;
        return true;
}

/* Copies of the pieces and, behind them, of their sources. */
static struct reduce_piece *pieces_inside(const struct stream *s, const struct zero_cuda_reduce *r)
{
        struct reduce_piece *pieces;
        const void **src;
        size_t n_sources = 0;

        for (size_t i = 0; i < r->n_pieces; i++)
                n_sources += r->pieces[i].k;
        pieces = malloc(r->n_pieces * sizeof *pieces + n_sources * sizeof *src);
        if (!pieces)
                return NULL;
        memcpy(pieces, r->pieces, r->n_pieces * sizeof *pieces);
        src = (const void **)(pieces + r->n_pieces);
        for (struct reduce_piece *p = pieces; p < pieces + r->n_pieces; p++) {
                if (p->n)
                        p->acc = inside(s, p->acc, p->n * sizeof(float));
                for (size_t i = 0; p->n && i < p->k; i++)
                        src[i] = inside(s, p->src[i], dtype_bytes(r->from, p->n));
                p->src = src;
                src += p->k;
        }
        return pieces;
}

/* As many launches as the plugin's own make, where no piece has many sources. */
static void count_launches(size_t n_pieces)
{
        const char *path = getenv("FAKE_GPU_REDUCES");
        int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;

        for (size_t i = 0; fd >= 0 && i < n_pieces; i += ZERO_CUDA_PIECES)
                if (write(fd, ".", 1) != 1)
                        fake_die("%s cannot be written", path);
        if (fd >= 0)
                close(fd);
}

int fake_reduce(const struct zero_cuda_reduce *reduce, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_reduce, .reduce = *reduce };
        int r = reduce_is_valid(reduce) ? check(s, reduce->n_pieces) : -EINVAL;

        if (r)
                return r < 0 ? r : 0;
        w.reduce.norm = inside(s, reduce->norm, sizeof *reduce->norm);
        w.lists = pieces_inside(s, reduce);
        if (!w.lists)
                return -ENOMEM;
        w.reduce.pieces = w.lists;
        count_launches(reduce->n_pieces);
        return enqueue(s, &w);
}

static void run_product(const struct work *w)
{
        cuda_product(&w->product, NULL);
}

static const uint16_t *matrix_inside(const struct stream *s, const uint16_t *x, size_t lines,
                                     size_t length, size_t stride)
{
        return inside(s, x, dtype_bytes(ZERO_BF16, (lines - 1) * stride + length));
}

static struct matrix_view view_inside(const struct stream *s, struct matrix_view m, size_t rows,
                                      size_t cols)
{
        m.x = m.transposed ? matrix_inside(s, m.x, cols, rows, m.stride)
                           : matrix_inside(s, m.x, rows, cols, m.stride);
        return m;
}

int fake_product(const struct product *p, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_product, .product = *p };
        int r = p->a.transposed && p->b.transposed ? -EINVAL : check(s, p->depth);

        if (r)
                return r < 0 ? r : 0;
        w.product.a = view_inside(s, p->a, p->rows, p->depth);
        w.product.b = view_inside(s, p->b, p->depth, p->cols);
        w.product.add = matrix_inside(s, p->add, p->rows, p->cols, p->stride);
        w.product.out = (uint16_t *)matrix_inside(s, p->out, p->rows, p->cols, p->stride);
        return enqueue(s, &w);
}

static void run_divide(const struct work *w)
{
        cuda_divide(w->dst, w->src[0], w->by, w->n, NULL);
}

int fake_divide(uint16_t *to, const uint16_t *from, float by, size_t n, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_divide, .by = by, .n = n };
        int r = check(s, n);

        if (r)
                return r < 0 ? r : 0;
        w.dst = inside(s, to, dtype_bytes(ZERO_BF16, n));
        w.src[0] = inside(s, from, dtype_bytes(ZERO_BF16, n));
        return enqueue(s, &w);
}

static void run_pack(const struct work *w)
{
        cuda_pack(w->format, w->dst, w->served, w->src[0], w->n, w->dither, NULL);
}

int fake_pack(enum format format, void *dst, uint16_t *served, const float *src, size_t n,
              uint32_t dither, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_pack, .format = format, .n = n, .dither = dither };
        int r = check(s, n);

        if (r)
                return r < 0 ? r : 0;
        w.dst = inside(s, dst, record_bytes(format, 0, n));
        w.served = inside(s, served, dtype_bytes(ZERO_BF16, n));
        w.src[0] = inside(s, src, n * sizeof *src);
        return enqueue(s, &w);
}

static void run_unpack(const struct work *w)
{
        cuda_unpack(w->format, w->to, w->dst, w->served, w->src[0], w->k, w->n, NULL);
}

int fake_unpack(enum format format, enum zero_dtype to, void *dst, const uint16_t *served,
                const void *src, size_t skip, size_t n, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_unpack, .format = format, .to = to, .k = skip, .n = n };
        int r = check(s, n);

        if (r)
                return r < 0 ? r : 0;
        w.dst = inside(s, dst, dtype_bytes(to, n));
        w.served = inside(s, served, dtype_bytes(ZERO_BF16, skip + n));
        w.src[0] = inside(s, src, record_bytes(format, skip, n));
        return enqueue(s, &w);
}

static void run_zero(const struct work *w)
{
        memset(w->dst, 0, w->n);
}

int fake_zero(void *dst, size_t n, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_zero, .n = n };
        int r = check(s, n);

        if (r)
                return r < 0 ? r : 0;
        w.dst = inside(s, dst, n);
        return enqueue(s, &w);
}

static void run_copy(const struct work *w)
{
        cuda_copy(w->dst, w->src[0], w->n, NULL);
}

int fake_copy(void *dst, const void *src, size_t n, void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_copy, .n = n };
        int r = check(s, n);

        if (r)
                return r < 0 ? r : 0;
        w.dst = fake_inside(dst, n, s->gpu, FAKE_COPY);
        w.src[0] = fake_inside(src, n, s->gpu, FAKE_COPY);
        return enqueue(s, &w);
}

int fake_copy_peer(void *dst, int dst_device, const void *src, int src_device, size_t n,
                   void *stream)
{
        struct stream *s = stream;
        struct work w = { .run = run_copy, .n = n };
        int r = check(s, n);

        if (r)
                return r < 0 ? r : 0;
        if (s->gpu != dst_device && s->gpu != src_device)
                fake_die("GPU %d was to copy from %d to %d", s->gpu, src_device, dst_device);
        w.dst = fake_inside(dst, n, dst_device, FAKE_PEER);
        w.src[0] = fake_inside(src, n, src_device, FAKE_PEER);
        return enqueue(s, &w);
}
