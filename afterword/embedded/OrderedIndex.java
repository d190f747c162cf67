import de.bwaldvogel.mongo.MongoCollection;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.backend.Missing;
import de.bwaldvogel.mongo.backend.Utils;
import de.bwaldvogel.mongo.bson.BinData;
import de.bwaldvogel.mongo.bson.Document;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import org.h2.mvstore.MVMap;
import org.h2.mvstore.WriteBuffer;
import org.h2.mvstore.type.BasicDataType;
import org.h2.mvstore.type.ByteArrayDataType;
import org.h2.mvstore.type.DataType;

/**
 * A secondary index, which mongo-java-server lacks: entries ordered by the values of its fields, then by {@code _id}.
 *
 * <p>It finds candidates only: whoever reads them looks at the whole query again. An array has an entry for each of its
 * elements. The value of an entry is the document's {@code _id}.
 */
class OrderedIndex extends MapIndex {

  /** Bytes, compared as unsigned ones; H2's own type for them has no order. */
  static final DataType<byte[]> KEY_TYPE =
      new BasicDataType<>() {
        @Override
        public int compare(byte[] one, byte[] other) {
          return Arrays.compareUnsigned(one, other);
        }

        @Override
        public int getMemory(byte[] key) {
          return ByteArrayDataType.INSTANCE.getMemory(key);
        }

        @Override
        public void write(WriteBuffer buffer, byte[] key) {
          ByteArrayDataType.INSTANCE.write(buffer, key);
        }

        @Override
        public byte[] read(ByteBuffer buffer) {
          return ByteArrayDataType.INSTANCE.read(buffer);
        }

        @Override
        public byte[][] createStorage(int size) {
          return new byte[size][];
        }
      };

  private static final int NULL = 0x05;
  private static final int NUMBER = 0x10;
  private static final int STRING = 0x20;
  private static final int BINARY = 0x30;
  private static final int BOOLEAN = 0x40;
  private static final int INSTANT = 0x50;
  private static final int OTHER = 0x70;

  private static final byte ESCAPED = (byte) 0xFF;
  private static final byte END = 0x01;

  private static final int DOCUMENTS_IN_COMMIT = 5000;

  private final MVMap<byte[], Object> entries;
  private final Runnable commit;
  private final Runnable onComplete;
  private boolean isComplete;
  private int added;

  /** Until it is complete, entries of all documents are added, with a {@code commit} now and then. */
  OrderedIndex(
      MVMap<byte[], Object> entries,
      String name,
      List<IndexKey> keys,
      boolean isComplete,
      Runnable commit,
      Runnable onComplete) {
    super(entries, name, keys, true); // sparse: the server takes the position from an index that has it
    this.entries = entries;
    this.isComplete = isComplete;
    this.commit = commit;
    this.onComplete = onComplete;
  }

  void complete() {
    isComplete = true;
    onComplete.run();
  }

  MVMap<byte[], Object> entries() {
    return entries;
  }

  List<String> fields() {
    return keys();
  }

  /** Tells whether a field can be searched for the value: what is only marked as "other" cannot. */
  static boolean isSearchable(Object value) {
    return typeOf(value) != OTHER;
  }

  /** The bytes of one value, in the order of MongoDB's comparison; no value's bytes begin with those of another one. */
  static byte[] encoded(Object value) {
    int type = typeOf(value);
    byte[] content = content(type, value);
    boolean ends = type == STRING || type == BINARY;
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(content.length + 3);
    bytes.write(type);
    for (byte one : content) {
      bytes.write(one);
      if (ends && one == 0) {
        bytes.write(ESCAPED);
      }
    }
    if (ends) {
      bytes.write(0);
      bytes.write(END);
    }
    return bytes.toByteArray();
  }

  /** The bytes with which every value of this one's type begins. */
  static byte[] typePrefix(Object value) {
    return new byte[] {(byte) typeOf(value)};
  }

  static byte[] joined(byte[] first, byte[] second) {
    return ByteBuffer.allocate(first.length + second.length).put(first).put(second).array();
  }

  /** The first key after all that begin with this prefix; null after the last one. */
  static byte[] after(byte[] prefix) {
    byte[] next = prefix.clone();
    for (int at = next.length - 1; at >= 0; at--) {
      if (++next[at] != 0) {
        return Arrays.copyOf(next, at + 1);
      }
    }
    return null;
  }

  private static int typeOf(Object value) {
    if (Missing.isNullOrMissing(value)) {
      return NULL;
    } else if (value instanceof Number) {
      return NUMBER;
    } else if (value instanceof String) {
      return STRING;
    } else if (value instanceof BinData) {
      return BINARY;
    } else if (value instanceof Boolean) {
      return BOOLEAN;
    } else if (value instanceof Instant) {
      return INSTANT;
    }
    return OTHER;
  }

  private static byte[] content(int type, Object value) {
    return switch (type) {
      case NUMBER -> ordered(Double.doubleToLongBits(((Number) value).doubleValue() + 0.0)); // no negative zero
      case STRING -> ((String) value).getBytes(StandardCharsets.UTF_8);
      case BINARY -> ((BinData) value).getData();
      case BOOLEAN -> new byte[] {(byte) ((Boolean) value ? 1 : 0)};
      case INSTANT -> ByteBuffer.allocate(8).putLong(((Instant) value).toEpochMilli() ^ Long.MIN_VALUE).array();
      default -> new byte[0];
    };
  }

  private static byte[] ordered(long doubleBits) {
    long flipped = doubleBits < 0 ? ~doubleBits : doubleBits ^ Long.MIN_VALUE;
    return ByteBuffer.allocate(8).putLong(flipped).array();
  }

  private List<byte[]> keysOf(Document document) {
    List<byte[]> found = List.of(new byte[0]);
    for (String field : fields()) {
      List<byte[]> longer = new ArrayList<>();
      for (Object value : values(Utils.getSubdocumentValueCollectionAware(document, field))) {
        byte[] bytes = encoded(value);
        found.forEach(prefix -> longer.add(joined(prefix, bytes)));
      }
      found = longer;
    }
    Object own = document.get("_id");
    byte[] id = encoded(isSearchable(own) ? own : own.toString());
    return found.stream().map(prefix -> joined(prefix, id)).toList();
  }

  /** Tells whether the document has more than one entry. */
  boolean repeats(Document document) {
    return fields().stream()
        .anyMatch(field -> values(Utils.getSubdocumentValueCollectionAware(document, field)).size() > 1);
  }

  private static Collection<?> values(Object value) {
    if (value instanceof Collection<?> elements && !elements.isEmpty()) {
      return elements;
    }
    return Collections.singletonList(value instanceof Collection ? null : value);
  }

  @Override
  public void add(Document document, Object position, MongoCollection<Object> collection) {
    keysOf(document).forEach(key -> entries.put(key, position));
    if (!isComplete && ++added % DOCUMENTS_IN_COMMIT == 0) {
      commit.run();
    }
  }

  @Override
  public Object remove(Document document) {
    keysOf(document).forEach(entries::remove);
    return null;
  }

  @Override
  public void updateInPlace(Document before, Document after, Object position, MongoCollection<Object> collection) {
    List<byte[]> kept = keysOf(after);
    for (byte[] key : keysOf(before)) {
      if (kept.stream().noneMatch(one -> Arrays.equals(one, key))) {
        entries.remove(key);
      }
    }
    for (byte[] key : kept) {
      entries.putIfAbsent(key, position);
    }
  }

  @Override
  public Object getPosition(Document document) {
    return null; // the index of _id knows it
  }

  @Override
  public void checkAdd(Document document, MongoCollection<Object> collection) {
    // nothing is refused
  }

  @Override
  public void checkUpdate(Document before, Document after, MongoCollection<Object> collection) {
    // nothing is refused
  }

  @Override
  public void drop() {
    entries.clear();
  }
}
