/* The types of all records. */
#include "daemon/face/status/fields.h"

STATUS_RECORDS(RECORD_DEFINE)
