/* See tensor_file.h. */
#include "tensor_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "units.h"

static enum zero_dtype dtype_of(const struct zero_layout *layout, uint32_t tensor, bool master)
{
        enum zero_dtype dtype =
                zero_layout_group_dtype(layout, zero_layout_tensor_group(layout, tensor));

        return master && !zero_dtype_is_bytes(dtype) ? ZERO_FP32 : dtype;
}

static void describe(const struct zero_layout *layout, uint32_t tensor, enum zero_dtype dtype,
                     struct safetensor *t)
{
        const uint64_t *shape;

        t->name = zero_layout_tensor_name(layout, tensor);
        t->dtype = safetensors_word(dtype);
        t->element = zero_dtype_is_bytes(dtype) ? 1 : zero_dtype_size(dtype);
        t->ndim = zero_layout_tensor_shape(layout, tensor, &shape);
        memcpy(t->shape, shape, t->ndim * sizeof(*shape));
        t->bytes = t->element;
        for (uint32_t i = 0; i < t->ndim; i++)
                t->bytes *= t->shape[i];
}

int tensor_list(const struct zero_layout *layout, bool master, uint64_t most,
                struct safetensor **ret, uint32_t *ret_n)
{
        uint32_t n = zero_layout_tensors(layout);
        struct safetensor *tensors = calloc(n + 1, sizeof(*tensors));
        uint64_t at = 0;

        if (!tensors) {
                ctl_error("out of memory");
                return CTL_FAILED;
        }
        for (uint32_t i = 0; i < n; i++) {
                describe(layout, i, dtype_of(layout, i, master), &tensors[i]);
                if (strcmp(tensors[i].name, SAFETENSORS_METADATA) == 0) {
                        ctl_error("a safetensors file cannot have a tensor named __metadata__");
                        free(tensors);
                        return CTL_FAILED;
                }
                if (at > 0 && (at > most || tensors[i].bytes > most - at))
                        at = 0;
                tensors[i].at = at;
                at += tensors[i].bytes;
        }
        *ret = tensors;
        *ret_n = n;
        return CTL_OK;
}

bool tensor_begins(const struct safetensor *tensors, uint32_t i)
{
        return i == 0 || tensors[i].at != tensors[i - 1].at + tensors[i - 1].bytes;
}

const char *tensor_bytes(const struct zero_client *client, const struct zero_weights *weights,
                         uint32_t tensor)
{
        const struct zero_layout *layout = zero_client_layout(client);
        uint32_t group = zero_layout_tensor_group(layout, tensor);
        const char *at = zero_weights_group(client, weights, group);

        return at ? at + zero_layout_offset(layout, tensor) *
                                       zero_dtype_size(zero_layout_group_dtype(layout, group))
                  : NULL; /* of an empty version nothing is mapped */
}

int file_put(int fd, const void *data, size_t n)
{
        const char *p = data;

        while (n > 0) {
                ssize_t done = write(fd, p, n);

                if (done < 0 && errno == EINTR)
                        continue;
                if (done < 0)
                        return -errno;
                p += done;
                n -= (size_t)done;
        }
        return 0;
}

int file_put_header(int fd, const struct safetensor *tensors, uint32_t n, json_t *metadata)
{
        char *header;
        size_t size;
        int r;

        if (safetensors_header(tensors, n, metadata, &header, &size))
                return -ENOMEM;
        r = file_put(fd, header, size);
        free(header);
        return r;
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        fprintf(out, "job %s, version %.0f: %.0f tensors, %s in %s\n", field_text(answer, "job"),
                field_number(answer, "version"), field_number(answer, "tensors"),
                unit_bytes(field_number(answer, "bytes")).text, field_text(answer, "file"));
}

int file_show(struct ctl *ctl, const char *job, const char *file, uint64_t version, uint32_t n,
              uint64_t bytes)
{
        return ctl_show(ctl,
                        json_pack("{s:s, s:s, s:I, s:I, s:I}", "job", job, "file", file, "version",
                                  (json_int_t)version, "tensors", (json_int_t)n, "bytes",
                                  (json_int_t)bytes),
                        show);
}
