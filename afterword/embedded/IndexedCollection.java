import de.bwaldvogel.mongo.MongoDatabase;
import de.bwaldvogel.mongo.backend.AbstractCursor;
import de.bwaldvogel.mongo.backend.CollectionOptions;
import de.bwaldvogel.mongo.backend.CursorRegistry;
import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.QueryResult;
import de.bwaldvogel.mongo.backend.ValueComparator;
import de.bwaldvogel.mongo.backend.h2.H2Collection;
import de.bwaldvogel.mongo.bson.BsonRegularExpression;
import de.bwaldvogel.mongo.bson.Document;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.TreeSet;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.h2.mvstore.Cursor;
import org.h2.mvstore.MVMap;

/**
 * A collection that looks for documents by its indexes, in their order where that is asked for, and reads no more of
 * them than are taken. mongo-java-server itself reads all documents of a collection unless the query is an _id alone.
 */
class IndexedCollection extends H2Collection {

  private static final int FIRST_PAGE = 16;
  private static final int LARGEST_PAGE = 512;
  private static final int MOST_VALUES = 2000; // of one `$in`
  private static final int REPLY_BYTES = 8 << 20; // drivers refuse 48 MB, and MongoDB itself sends 16 MB at most

  /** What the aggregation that this thread runs begins with: the server would give it all documents. */
  static final ThreadLocal<Beginning> BEGINNING = new ThreadLocal<>();

  /** A `$match`, and the `$project` behind it, or null if that is done by the server. */
  record Beginning(Document match, Projection projection) {}

  private final MVMap<Object, Document> documents;

  IndexedCollection(
      MongoDatabase database,
      String name,
      CollectionOptions options,
      MVMap<Object, Document> documents,
      MVMap<String, Object> meta,
      CursorRegistry cursors) {
    super(database, name, options, documents, meta, cursors);
    this.documents = documents;
  }

  @Override
  public void addIndex(Index<Object> index) {
    super.addIndex(index);
    if (index instanceof OrderedIndex ordered) {
      ordered.complete();
    }
  }

  @Override
  protected QueryResult queryDocuments(
      Document query, Document orderBy, int skip, int limit, int batchSize, Document fields) {
    boolean ordered = orderBy != null && !orderBy.isEmpty();
    if (getIdField() == null || (ordered && orderBy.containsKey("$natural"))) {
      return super.queryDocuments(query, orderBy, skip, limit, batchSize, fields);
    }
    Plan plan = plan(query, ordered ? orderBy : new Document());
    Document wanted = withoutIds(query);
    if (!plan.sorted) {
      return matchDocumentsFromStream(candidates(plan, null), wanted, orderBy, skip, limit, batchSize, fields);
    }
    Matches matches = new Matches(wanted, new Candidates(plan, null), skip, limit, fields);
    List<Document> first = matches.take(batchSize > 0 ? batchSize : Integer.MAX_VALUE);
    if (!matches.hasNext()) {
      return new QueryResult(first);
    }
    OpenCursor cursor = new OpenCursor(cursorRegistry.generateCursorId(), matches);
    cursorRegistry.add(cursor);
    return new QueryResult(first, cursor);
  }

  @Override
  public Stream<Document> queryAllAsStream() {
    Beginning first = BEGINNING.get();
    return first == null
        ? super.queryAllAsStream().map(Document::clone)
        : candidates(plan(first.match, new Document()), first.projection);
  }

  /**
   * What a query asks of its candidates, where these are found by an `$in` of their _id: to look for the _id of each in
   * all of them once more would take the square of their number.
   */
  static Document withoutIds(Document query) {
    boolean isIn =
        query.get("_id") instanceof Document operators
            && operators.size() == 1
            && operators.get("$in") instanceof Collection<?> values
            && Condition.isUsable(values);
    if (!isIn) {
      return query;
    }
    Document rest = new Document(query);
    rest.remove("_id");
    return rest;
  }

  /**
   * Whole fields, and beginnings of texts. The server's own takes the names of the fields apart anew for every document,
   * which costs as much as to read it. `lengths`: code points of a field's text, null for all of its value.
   */
  record Projection(Map<String, Integer> lengths) {

    /** Null for a projection of anything else. */
    static Projection of(Object stage) {
      if (!(stage instanceof Document wanted) || wanted.isEmpty()) {
        return null;
      }
      Map<String, Integer> lengths = new LinkedHashMap<>();
      for (Map.Entry<String, Object> field : wanted.entrySet()) {
        String name = field.getKey();
        Integer length = length(name, field.getValue());
        boolean isWhole = field.getValue() instanceof Integer number && number == 1;
        if (name.equals("_id") || name.contains(".") || (length == null && !isWhole)) {
          return null;
        }
        lengths.put(name, length);
      }
      return new Projection(lengths);
    }

    /** Code points of `{$substrCP: ["$name", 0, length]}`; null for another expression. */
    private static Integer length(String name, Object expression) {
      boolean isBeginning =
          expression instanceof Document operator
              && operator.get("$substrCP") instanceof List<?> arguments
              && arguments.size() == 3
              && ("$" + name).equals(arguments.get(0))
              && Integer.valueOf(0).equals(arguments.get(1))
              && arguments.get(2) instanceof Integer length
              && length >= 0;
      return isBeginning ? (Integer) ((List<?>) ((Document) expression).get("$substrCP")).get(2) : null;
    }

    Document of(Document document) {
      Document projected = new Document("_id", document.get("_id"));
      for (Map.Entry<String, Integer> field : lengths.entrySet()) {
        Object value = document.get(field.getKey());
        if (field.getValue() != null) {
          projected.put(field.getKey(), beginning(value == null ? "" : value.toString(), field.getValue()));
        } else if (value != null || document.containsKey(field.getKey())) {
          projected.put(field.getKey(), value);
        }
      }
      return projected;
    }

    private static String beginning(String text, int length) {
      boolean isShort = text.length() <= length || text.codePointCount(0, text.length()) <= length;
      return isShort ? text : text.substring(0, text.offsetByCodePoints(0, length));
    }
  }

  private Stream<Document> candidates(Plan plan, Projection projection) {
    Iterator<Document> found = new Candidates(plan, projection);
    return StreamSupport.stream(Spliterators.spliteratorUnknownSize(found, Spliterator.ORDERED), false);
  }

  // Planning

  /** One range of keys. Its bounds are wide: whoever reads it looks at the whole query. */
  private record Range(OrderedIndex index, Object from, Object to, boolean descending) {}

  /** All candidates of a query: `points` are values of _id; without `ranges` and `points` there are none. */
  private record Plan(List<Range> ranges, Collection<?> points, boolean sorted, int score) {}

  private Plan plan(Document query, Document orderBy) {
    Plan best = byId(query, orderBy);
    for (Index<Object> index : getIndexes()) {
      if (index instanceof OrderedIndex ordered) {
        Plan plan = byIndex(ordered, query, orderBy);
        best = plan != null && plan.score > best.score ? plan : best;
      }
    }
    if (best.score <= 1 && query.get("$or") instanceof Collection<?> branches) {
      Plan union = byBranches(query, branches);
      best = union == null ? best : union;
    }
    return best;
  }

  private Plan byId(Document query, Document orderBy) {
    Condition condition = Condition.of(query, "_id");
    if (condition.values != null) {
      boolean sorted = orderBy.isEmpty() || condition.values.size() < 2;
      return new Plan(List.of(), condition.values, sorted, Integer.MAX_VALUE);
    }
    boolean isFirst = !orderBy.isEmpty() && orderBy.keySet().iterator().next().equals("_id");
    boolean descending = isFirst && !isAscending(orderBy.get("_id"));
    Object low = condition.low instanceof String ? condition.low : null;
    Object high = condition.high instanceof String ? condition.high : null;
    Range range = new Range(null, descending ? high : low, descending ? low : high, descending);
    boolean sorted = orderBy.isEmpty() || isFirst;
    return new Plan(List.of(range), List.of(), sorted, (low != null || high != null ? 2 : 0) + (sorted ? 1 : 0));
  }

  /** Values of the first fields, then a range of the next one; null if the index does not help. */
  private Plan byIndex(OrderedIndex index, Document query, Document orderBy) {
    List<byte[]> prefixes = List.of(new byte[0]);
    List<String> fields = index.fields();
    int equal = 0;
    boolean several = false;
    Condition condition = null;
    for (; equal < fields.size(); equal++) {
      condition = Condition.of(query, fields.get(equal));
      if (condition.values == null || (several && condition.values.size() > 1)) {
        break;
      }
      several = several || condition.values.size() > 1;
      List<byte[]> longer = new ArrayList<>();
      for (byte[] prefix : prefixes) {
        condition.values.forEach(value -> longer.add(OrderedIndex.joined(prefix, OrderedIndex.encoded(value))));
      }
      prefixes = longer;
    }
    boolean bounded = equal < fields.size() && condition.isBounded();
    Boolean descending = several ? null : direction(orderBy, fields, equal);
    boolean sorted = orderBy.isEmpty() || descending != null;
    if (equal == 0 && !bounded && (orderBy.isEmpty() || !sorted)) {
      return null;
    }
    List<Range> ranges = new ArrayList<>();
    for (byte[] prefix : prefixes) {
      byte[] low = bounded ? OrderedIndex.joined(prefix, condition.lowest()) : prefix;
      byte[] high = OrderedIndex.after(bounded ? OrderedIndex.joined(prefix, condition.highest()) : prefix);
      boolean backwards = descending != null && descending;
      ranges.add(new Range(index, backwards ? high : low, backwards ? low : high, backwards));
    }
    return new Plan(ranges, List.of(), sorted, 4 * equal + (bounded ? 2 : 0) + (sorted ? 1 : 0));
  }

  /** True if descending, false if ascending, null if the index has not this order behind its first fields. */
  private static Boolean direction(Document orderBy, List<String> fields, int equal) {
    List<String> rest = new ArrayList<>(fields.subList(equal, fields.size()));
    rest.add("_id");
    Boolean descending = null;
    int at = 0;
    for (Map.Entry<String, Object> key : orderBy.entrySet()) {
      if (fields.subList(0, equal).contains(key.getKey())) {
        continue;
      }
      boolean down = !isAscending(key.getValue());
      if (at >= rest.size() || !rest.get(at++).equals(key.getKey()) || (descending != null && descending != down)) {
        return null;
      }
      descending = down;
    }
    return descending != null && descending;
  }

  private Plan byBranches(Document query, Collection<?> branches) {
    List<Range> ranges = new ArrayList<>();
    List<Object> points = new ArrayList<>();
    for (Object branch : branches) {
      Document all = new Document(query);
      all.remove("$or");
      all.putAll((Document) branch);
      Plan plan = plan(all, new Document());
      if (plan.score <= 1) {
        return null;
      }
      ranges.addAll(plan.ranges);
      points.addAll(plan.points);
    }
    return new Plan(ranges, points, false, 1);
  }

  private static boolean isAscending(Object direction) {
    return ((Number) direction).intValue() >= 0;
  }

  /** What a query says of one field, as far as an index can use it. No array of ours is asked for by a range. */
  private record Condition(Collection<?> values, Object low, Object high) {

    private static final Condition NONE = new Condition(null, null, null);

    static Condition of(Document query, String field) {
      if (!query.containsKey(field)) {
        return NONE;
      }
      Object wanted = query.get(field);
      if (BsonRegularExpression.isRegularExpression(wanted)) {
        return NONE;
      }
      if (!(wanted instanceof Document operators)) {
        return equalTo(Collections.singletonList(wanted));
      }
      if (operators.containsKey("$eq")) {
        return equalTo(Collections.singletonList(operators.get("$eq")));
      }
      if (operators.get("$in") instanceof Collection<?> values) {
        return equalTo(values);
      }
      Object low = operators.getOrDefault("$gte", operators.get("$gt"));
      Object high = operators.getOrDefault("$lte", operators.get("$lt"));
      return new Condition(null, bound(low), bound(high));
    }

    private static Condition equalTo(Collection<?> values) {
      if (!isUsable(values)) {
        return NONE;
      }
      Set<Object> inOrder = new TreeSet<>(ValueComparator.asc()); // as MongoDB answers an `$in`
      inOrder.addAll(values);
      return new Condition(inOrder, null, null);
    }

    static boolean isUsable(Collection<?> values) {
      return values.size() <= MOST_VALUES && values.stream().allMatch(OrderedIndex::isSearchable);
    }

    private static Object bound(Object value) {
      return value != null && OrderedIndex.isSearchable(value) ? value : null;
    }

    boolean isBounded() {
      return low != null || high != null;
    }

    byte[] lowest() {
      return low == null ? OrderedIndex.typePrefix(high) : OrderedIndex.encoded(low);
    }

    byte[] highest() {
      return high == null ? OrderedIndex.typePrefix(low) : OrderedIndex.encoded(high);
    }
  }

  // Reading

  /**
   * Copies of a plan's documents, each once. It holds no position in a map: what is written meanwhile may be met or
   * missed. Copies, because an update changes the fields of the document that it has found, which others may be sending.
   */
  private class Candidates implements Iterator<Document> {

    private final Plan plan;
    private final Projection projection;
    private final Iterator<?> points;
    private final Iterator<Range> ranges;
    private final Set<Object> seen = new HashSet<>();
    private final boolean overlaps;
    private Range range;
    private Object last;
    private int size = FIRST_PAGE;
    private Iterator<Document> page = List.<Document>of().iterator();

    Candidates(Plan plan, Projection projection) {
      this.plan = plan;
      this.projection = projection;
      this.points = plan.points.iterator();
      this.ranges = plan.ranges.iterator();
      this.overlaps = plan.ranges.size() + plan.points.size() > 1;
    }

    @Override
    public boolean hasNext() {
      while (!page.hasNext()) {
        List<Document> found = read();
        if (found == null) {
          return false;
        }
        page = found.iterator();
      }
      return true;
    }

    @Override
    public Document next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      return page.next();
    }

    /** The next page, which may be empty; null at the end. */
    private List<Document> read() {
      List<Document> found = new ArrayList<>();
      if (points.hasNext()) {
        for (int left = size; left > 0 && points.hasNext(); left--) {
          Object point = points.next();
          keep(point, documents.get(point), found);
        }
      } else if (range == null && !ranges.hasNext()) {
        return null;
      } else {
        if (range == null) {
          range = ranges.next();
          last = null;
        }
        if (range.index == null) {
          readRange(documents, found);
        } else {
          readRange(range.index.entries(), found);
        }
      }
      size = Math.min(2 * size, LARGEST_PAGE);
      return found;
    }

    @SuppressWarnings("unchecked")
    private <K, V> void readRange(MVMap<K, V> map, List<Document> found) {
      Cursor<K, V> cursor =
          map.cursor((K) (last == null ? range.from : last), (K) range.to, range.descending);
      int left = size;
      while (left > 0 && cursor.hasNext()) {
        K key = cursor.next();
        if (last != null && map.getKeyType().compare(key, (K) last) == 0) {
          continue;
        }
        if (range.index == null) {
          keep(key, (Document) cursor.getValue(), found);
        } else {
          keep(cursor.getValue(), documents.get(cursor.getValue()), found);
        }
        last = key;
        left--;
      }
      if (left > 0) {
        range = null;
      }
    }

    private void keep(Object position, Document document, List<Document> found) {
      if (document == null) {
        return;
      }
      boolean repeated = range != null && range.index != null && range.index.repeats(document);
      if (!(overlaps || repeated) || seen.add(position)) {
        found.add(projection == null ? document.clone() : projection.of(document));
      }
    }
  }

  /** Documents that match, behind `skip` others, at most `limit` of them if that is positive. */
  private class Matches {

    private final Document query;
    private final Iterator<Document> candidates;
    private final Document fields;
    private int skip;
    private long left;
    private Document next;

    Matches(Document query, Iterator<Document> candidates, int skip, int limit, Document fields) {
      this.query = query;
      this.candidates = candidates;
      this.skip = skip;
      this.left = limit > 0 ? limit : Long.MAX_VALUE;
      this.fields = fields == null || fields.isEmpty() ? null : fields;
    }

    boolean hasNext() {
      while (next == null && left > 0 && candidates.hasNext()) {
        Document candidate = candidates.next();
        if (documentMatchesQuery(candidate, query) && skip-- <= 0) {
          next = candidate;
          left--;
        }
      }
      return next != null;
    }

    /** At most so many, and no more than fit into a reply. */
    List<Document> take(int number) {
      List<Document> taken = new ArrayList<>();
      int left = REPLY_BYTES;
      while (taken.size() < number && left > 0 && hasNext()) {
        taken.add(next);
        left -= DocumentType.size(next);
        next = null;
      }
      return fields == null ? taken : projected(taken);
    }

    private List<Document> projected(List<Document> taken) {
      return matchDocumentsFromStream(taken.stream(), query, null, 0, 0, 0, fields).collectDocuments();
    }
  }

  /** The rest of a reply, read when it is asked for. */
  private class OpenCursor extends AbstractCursor {

    private final Matches matches;

    OpenCursor(long id, Matches matches) {
      super(id);
      this.matches = matches;
    }

    @Override
    public boolean isEmpty() {
      synchronized (IndexedCollection.this) {
        return !matches.hasNext();
      }
    }

    @Override
    public List<Document> takeDocuments(int number) {
      synchronized (IndexedCollection.this) {
        return matches.take(number > 0 ? number : LARGEST_PAGE);
      }
    }
  }
}
