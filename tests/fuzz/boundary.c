/* See boundary.h. */
#include "tests/fuzz/boundary.h"

#include <math.h>
#include <stdint.h>

static const uint32_t words[] = {
        0, 1, 255, 65536, INT32_MAX, 1u << 31, UINT32_MAX - 1, UINT32_MAX
};
static const uint64_t longs[] = {
        0,         1,          UINT32_MAX,        1ull << 32,      1ull << 50,
        INT64_MAX, 1ull << 63, UINT64_MAX - 4095, UINT64_MAX - 63, UINT64_MAX
};
static const double numbers[] = { 0, -1, 1e308, INFINITY, NAN };

#define SET(to, values, n)                              \
        if ((n) < sizeof(values) / sizeof(values)[0]) { \
                *(to) = (values)[n];                    \
                return true;                            \
        }                                               \
        (n) -= sizeof(values) / sizeof(values)[0]

static bool number_set(ProtobufCType type, void *at, size_t *n)
{
        switch (type) {
        case PROTOBUF_C_TYPE_INT32:
        case PROTOBUF_C_TYPE_SINT32:
        case PROTOBUF_C_TYPE_UINT32:
        case PROTOBUF_C_TYPE_ENUM:
                SET((uint32_t *)at, words, *n);
                return false;
        case PROTOBUF_C_TYPE_INT64:
        case PROTOBUF_C_TYPE_SINT64:
        case PROTOBUF_C_TYPE_UINT64:
                SET((uint64_t *)at, longs, *n);
                return false;
        case PROTOBUF_C_TYPE_DOUBLE:
                SET((double *)at, numbers, *n);
                return false;
        case PROTOBUF_C_TYPE_MESSAGE:
                return *(ProtobufCMessage **)at && boundary_set(*(ProtobufCMessage **)at, n);
        default: /* a client chooses what is in them, and their length is a frame's */
                return false;
        }
}

static size_t element_size(ProtobufCType type)
{
        return type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *)
               : type == PROTOBUF_C_TYPE_UINT32 || type == PROTOBUF_C_TYPE_SINT32 ||
                               type == PROTOBUF_C_TYPE_INT32 || type == PROTOBUF_C_TYPE_ENUM
                       ? sizeof(uint32_t)
                       : sizeof(uint64_t);
}

static bool field_set(ProtobufCMessage *m, const ProtobufCFieldDescriptor *f, size_t *n)
{
        char *at = (char *)m + f->offset;
        const void *quantifier = (const char *)m + f->quantifier_offset;

        if (f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF && *(const uint32_t *)quantifier != f->id)
                return false;
        if (f->label != PROTOBUF_C_LABEL_REPEATED)
                return number_set(f->type, at, n);
        for (size_t i = 0; i < *(const size_t *)quantifier; i++)
                if (number_set(f->type, *(char **)at + i * element_size(f->type), n))
                        return true;
        return false;
}

bool boundary_set(ProtobufCMessage *m, size_t *n)
{
        for (unsigned i = 0; i < m->descriptor->n_fields; i++)
                if (field_set(m, &m->descriptor->fields[i], n))
                        return true;
        return false;
}
