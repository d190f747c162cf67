/* The words of a message, as `words_in` of shifts.py finds them, in a tenth of its time. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES 600
#define MOST_WORDS (MOST_BYTES / 2 + 1)
#define MOST_KNOWN 256
#define LONGEST_KNOWN 16
#define SLOTS 512 /* a power of two, and more than MOST_WORDS and MOST_KNOWN */
#define FNV_BASIS 2166136261u
#define FNV_PRIME 16777619u
#define ENDS 0    /* what LETTERS has for a byte that ends a word, */
#define IS_NONE 1 /* and for one that is passed over */

struct known {
    unsigned char letters[LONGEST_KNOWN];
    uint32_t hash;
    unsigned length; /* 0: the slot is free */
    unsigned bits;
};

struct word {
    const unsigned char *letters;
    uint32_t hash;
    unsigned length;
};

static unsigned char LETTERS[256];
static uint32_t CRC[256];
static struct known KNOWN[SLOTS];
static int english_bit, refers_bit, refers_within, stem_bytes, most_content;

static void make_tables(void) {
    for (int byte = 0; byte < 256; byte++) {
        LETTERS[byte] = byte >= 'A' && byte <= 'Z' ? byte + 32
            : (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') ? byte
            : byte == '\'' ? IS_NONE : ENDS;
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        CRC[byte] = crc;
    }
}

static uint32_t hash_of(const unsigned char *letters, size_t length) {
    uint32_t hash = FNV_BASIS;
    for (size_t at = 0; at < length; at++)
        hash = (hash ^ letters[at]) * FNV_PRIME;
    return hash;
}

/* The slot of a known word, or the free one where it would be. */
static struct known *known_slot(const unsigned char *letters, unsigned length, uint32_t hash) {
    struct known *slot;
    for (uint32_t at = hash;; at++) {
        slot = &KNOWN[at % SLOTS];
        if (!slot->length || (slot->hash == hash && slot->length == length && !memcmp(slot->letters, letters, length)))
            return slot;
    }
}

static PyObject *prepare(PyObject *module, PyObject *arguments) {
    PyObject *known, *word, *bits;
    Py_ssize_t at = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!iiiii", &PyDict_Type, &known, &english_bit, &refers_bit, &refers_within,
                          &stem_bytes, &most_content))
        return NULL;
    if (PyDict_GET_SIZE(known) > MOST_KNOWN)
        return PyErr_Format(PyExc_ValueError, "more than %d known words", MOST_KNOWN);
    memset(KNOWN, 0, sizeof KNOWN);
    while (PyDict_Next(known, &at, &word, &bits)) {
        if (!PyBytes_Check(word) || PyBytes_GET_SIZE(word) < 1 || PyBytes_GET_SIZE(word) > LONGEST_KNOWN)
            return PyErr_Format(PyExc_ValueError, "%R is no word of 1 to %d bytes", word, LONGEST_KNOWN);
        long value = PyLong_AsLong(bits);
        if (value == -1 && PyErr_Occurred())
            return NULL;
        const unsigned char *letters = (const unsigned char *)PyBytes_AS_STRING(word);
        unsigned length = (unsigned)PyBytes_GET_SIZE(word);
        uint32_t hash = hash_of(letters, length);
        struct known *slot = known_slot(letters, length, hash);
        memcpy(slot->letters, letters, length);
        slot->hash = hash;
        slot->length = length;
        slot->bits = (unsigned)value;
    }
    Py_RETURN_NONE;
}

/* Return whether the word is not among those before it, and put it there. */
static int is_new(const struct word *words, unsigned different, uint16_t *slots, const struct word *word) {
    for (uint32_t at = word->hash;; at++) {
        uint16_t *slot = &slots[at % SLOTS]; /* numbers of words, from 1; 0: free */
        if (!*slot) {
            *slot = (uint16_t)(different + 1);
            return 1;
        }
        const struct word *other = &words[*slot - 1];
        if (other->hash == word->hash && other->length == word->length && !memcmp(other->letters, word->letters, word->length))
            return 0;
    }
}

static uint16_t digest_of(const struct word *word) {
    uint32_t crc = 0xFFFFFFFFu;
    unsigned end = word->length < (unsigned)stem_bytes ? word->length : (unsigned)stem_bytes;
    for (unsigned at = 0; at < end; at++)
        crc = CRC[(crc ^ word->letters[at]) & 255] ^ crc >> 8;
    return (uint16_t)~crc;
}

static int compared(const void *a, const void *b) {
    return *(const uint16_t *)a - *(const uint16_t *)b;
}

/* The first of the digests in order, each once. */
static PyObject *list_of(uint16_t *digests, unsigned count) {
    PyObject *found = PyList_New(0);
    qsort(digests, count, sizeof *digests, compared);
    for (unsigned at = 0; found && at < count && PyList_GET_SIZE(found) < most_content; at++) {
        if (at && digests[at] == digests[at - 1])
            continue;
        PyObject *digest = PyLong_FromLong(digests[at]);
        if (!digest || PyList_Append(found, digest))
            Py_CLEAR(found);
        Py_XDECREF(digest);
    }
    return found;
}

static PyObject *words_in(PyObject *module, PyObject *plain) {
    (void)module;
    if (!PyBytes_Check(plain) || PyBytes_GET_SIZE(plain) > MOST_BYTES)
        return PyErr_Format(PyExc_ValueError, "no bytes, or more than %d", MOST_BYTES);
    const unsigned char *text = (const unsigned char *)PyBytes_AS_STRING(plain);
    Py_ssize_t size = PyBytes_GET_SIZE(plain);
    unsigned char letters[MOST_BYTES];
    struct word words[MOST_WORDS];
    uint16_t slots[SLOTS] = {0}, digests[MOST_WORDS];
    unsigned start = 0, end = 0, read = 0, different = 0, content = 0, bits = 0, english = 0, refers = 0;
    uint32_t hash = FNV_BASIS;
    for (Py_ssize_t at = 0; at <= size; at++) {
        unsigned char letter = at < size ? LETTERS[text[at]] : ENDS;
        if (letter == IS_NONE)
            continue;
        if (letter != ENDS) {
            letters[end++] = letter;
            hash = (hash ^ letter) * FNV_PRIME;
            continue;
        }
        if (end == start)
            continue;
        struct word word = {letters + start, hash, end - start};
        const struct known *known = known_slot(word.letters, word.length, hash);
        refers |= (int)read++ < refers_within && known->bits >> refers_bit & 1;
        if (is_new(words, different, slots, &word)) {
            words[different++] = word;
            if (known->length) {
                bits |= known->bits;
                english += known->bits >> english_bit;
            } else
                digests[content++] = digest_of(&word);
        }
        start = end;
        hash = FNV_BASIS;
    }
    bits &= (1u << english_bit) - 1;
    if (!refers)
        bits &= ~(1u << refers_bit);
    PyObject *found = list_of(digests, content);
    return found ? Py_BuildValue("(IIIN)", different, english, bits, found) : NULL;
}

static PyMethodDef METHODS[] = {
    {"prepare", prepare, METH_VARARGS, "Take the known words, and the numbers that shifts.py has."},
    {"words_in", words_in, METH_O, "As `words_in` of shifts.py."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "_words", NULL, -1, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__words(void) {
    make_tables();
    return PyModule_Create(&MODULE);
}
