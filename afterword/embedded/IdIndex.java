import de.bwaldvogel.mongo.MongoCollection;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.backend.KeyValue;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.exception.DuplicateKeyError;
import java.util.List;
import org.h2.mvstore.MVMap;

/**
 * The index of {@code _id}: the documents themselves, whose map has the {@code _id} as key. mongo-java-server's own is a
 * second map, whose keys H2 serializes anew for each comparison.
 */
class IdIndex extends MapIndex {

  static final String FIELD = "_id";

  private final MVMap<Object, Document> documents;

  IdIndex(MVMap<Object, Document> documents, String name, List<IndexKey> keys) {
    super(documents, name, keys, false);
    this.documents = documents;
  }

  @Override
  public boolean isUnique() {
    return true;
  }

  @Override
  public Object getPosition(Document document) {
    Object id = document.get(FIELD);
    return id != null && documents.containsKey(id) ? id : null;
  }

  @Override
  public void checkAdd(Document document, MongoCollection<Object> collection) {
    if (getPosition(document) != null) {
      throw new DuplicateKeyError(this, collection, getKeys(), new KeyValue(document.get(FIELD)));
    }
  }

  @Override
  public void add(Document document, Object position, MongoCollection<Object> collection) {
    // it is there with its document
  }

  @Override
  public Object remove(Document document) {
    return getPosition(document); // it goes with its document
  }

  @Override
  public void checkUpdate(Document before, Document after, MongoCollection<Object> collection) {
    // the server refuses another _id
  }

  @Override
  public void updateInPlace(Document before, Document after, Object position, MongoCollection<Object> collection) {
    // the server refuses another _id
  }

  @Override
  public void drop() {
    // the documents are dropped with their collection
  }
}
