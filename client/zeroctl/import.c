/*
 * zeroctl import: replaces a job's parameters with a safetensors file.
 *
 * Compares the file's header with the job's layout before it writes anything: names and shapes must
 * be the same, and fp32 must hold the file's type exactly.  The optimizer's state stays as it is.
 */
#include "ctl.h"

#include <stdlib.h>
#include <string.h>

#include "progress.h"
#include "safetensors.h"
#include "units.h"

enum { BATCH = 256 << 20 }; /* bytes between two looks at the progress */

struct import {
        struct ctl *ctl;
        const struct zero_layout *layout;
        struct safetensors file;
        uint64_t bytes, done;
        struct progress progress;
        struct zero_values *values; /* as many as fit in a batch, in the order of the file */
        uint32_t n_values;
        uint64_t batch; /* bytes */
};

/* ---- file and layout --------------------------------------------------------------- */

static bool same_shape(const struct safetensor *t, const uint64_t *shape, uint32_t ndim)
{
        return t->ndim == ndim &&
               (ndim == 0 || memcmp(t->shape, shape, ndim * sizeof(*shape)) == 0);
}

static int check_tensor(const struct import *im, uint32_t tensor)
{
        const char *name = zero_layout_tensor_name(im->layout, tensor);
        const struct safetensor *t = safetensors_find(&im->file, name);
        enum zero_dtype dtype =
                zero_layout_group_dtype(im->layout, zero_layout_tensor_group(im->layout, tensor));
        const uint64_t *shape;
        uint32_t ndim = zero_layout_tensor_shape(im->layout, tensor, &shape);

        if (!t)
                ctl_error("the file has no tensor '%.200s', which the job has", name);
        else if (!same_shape(t, shape, ndim))
                ctl_error("tensor '%.200s' has another shape in the file than in the job", name);
        else if (zero_dtype_is_bytes(dtype) && strcmp(t->dtype, safetensors_word(dtype)) != 0)
                ctl_error("tensor '%.200s' is %s in the file: the job has %s, as bytes", name,
                          t->dtype, safetensors_word(dtype));
        else if (!zero_dtype_is_bytes(dtype) && strcmp(t->dtype, "F32") != 0 &&
                 strcmp(t->dtype, "BF16") != 0 && strcmp(t->dtype, "F16") != 0)
                ctl_error("tensor '%.200s' is %s in the file: F32, BF16 or F16 can be imported",
                          name, t->dtype);
        else
                return CTL_OK;
        return CTL_FAILED;
}

static int check(const struct import *im)
{
        uint32_t n = zero_layout_tensors(im->layout), tensor;
        int r = CTL_OK;

        for (uint32_t i = 0; r == CTL_OK && i < n; i++)
                r = check_tensor(im, i);
        for (size_t i = 0; r == CTL_OK && im->file.n > n && i < im->file.n; i++) {
                if (zero_layout_find(im->layout, im->file.tensors[i].name, &tensor) == ZERO_OK)
                        continue;
                ctl_error("the job has no tensor '%.200s', which the file has",
                          im->file.tensors[i].name);
                r = CTL_FAILED;
        }
        return r;
}

/* ---- values ------------------------------------------------------------------------------ */

static int put_batch(struct import *im)
{
        int r = zero_put_file(im->ctl->client, im->file.fd, im->values, im->n_values);

        if (r) {
                ctl_error("%s: not all of its tensors were imported: %s (%s)", im->ctl->file,
                          zero_error(im->ctl->client), zero_status_name(r));
                return CTL_FAILED;
        }
        im->done += im->batch;
        im->batch = im->n_values = 0;
        progress_show(&im->progress, "importing", (double)im->done, (double)im->bytes);
        return CTL_OK;
}

static enum zero_dtype dtype_of(const struct import *im, uint32_t tensor, const char *word)
{
        if (strcmp(word, "F32") == 0)
                return ZERO_FP32;
        if (strcmp(word, "BF16") == 0)
                return ZERO_BF16;
        if (strcmp(word, "F16") == 0)
                return ZERO_FP16;
        return zero_layout_group_dtype(im->layout, zero_layout_tensor_group(im->layout, tensor));
}

static int put_tensor(struct import *im, const struct safetensor *t)
{
        struct zero_values *v = &im->values[im->n_values];

        (void)zero_layout_find(im->layout, t->name, &v->tensor); /* check() has found all names */
        v->plane = ZERO_PLANE_MASTER;
        v->dtype = dtype_of(im, v->tensor, t->dtype);
        v->first = 0;
        v->count = zero_layout_tensor_elements(im->layout, v->tensor);
        v->at = t->at;
        im->n_values++;
        im->batch += t->bytes;
        return im->batch < BATCH ? CTL_OK : put_batch(im);
}

static int put_all(struct import *im)
{
        int r = CTL_OK;

        im->values = calloc(im->file.n + 1, sizeof(*im->values));
        if (!im->values) {
                ctl_error("out of memory");
                return CTL_FAILED;
        }
        for (size_t i = 0; i < im->file.n; i++)
                im->bytes += im->file.tensors[i].bytes;
        progress_init(&im->progress, im->ctl->json);
        for (size_t i = 0; r == CTL_OK && i < im->file.n; i++)
                r = put_tensor(im, &im->file.tensors[i]);
        if (r == CTL_OK)
                r = put_batch(im);
        progress_end(&im->progress);
        return r;
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        fprintf(out, "job %s: %.0f tensors, %s from %s\n", field_text(answer, "job"),
                field_number(answer, "tensors"), unit_bytes(field_number(answer, "bytes")).text,
                field_text(answer, "file"));
}

static int import_file(struct import *im)
{
        struct ctl *ctl = im->ctl;
        int r = check(im);

        if (r == CTL_OK)
                r = put_all(im);
        free(im->values);
        if (r != CTL_OK)
                return r;
        return ctl_show(ctl,
                        json_pack("{s:s, s:s, s:I, s:I}", "job", ctl->argument, "file", ctl->file,
                                  "tensors", (json_int_t)im->file.n, "bytes",
                                  (json_int_t)im->bytes),
                        show);
}

static int run(struct ctl *ctl)
{
        struct import im = { .ctl = ctl };
        char error[SAFETENSORS_ERROR];
        int r = ctl_attach(ctl);

        if (r != CTL_OK)
                return r;
        im.layout = zero_client_layout(ctl->client);
        if (safetensors_open(ctl->file, &im.file, error)) {
                ctl_error("%s cannot be imported: %s", ctl->file, error);
                return CTL_FAILED;
        }
        r = import_file(&im);
        safetensors_close(&im.file);
        return r;
}

const struct command command_import = {
        .name = "import",
        .arguments = "JOB FILE",
        .summary = "replace a job's parameters with a safetensors file",
        .description =
                "Replaces the job's parameters with the values of a safetensors file; "
                "moments stay as they are. The file must have all of the job's tensors with "
                "their shapes, and no others, in fp32, bf16 or fp16; int8, uint8, fp8 and bool in "
                "their own type. No rank may have pushed gradients in the step.",
        .run = run,
        .of_job = true,
};
