import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.bson.Document;
import java.util.List;
import org.h2.mvstore.MVMap;

/** An index that is one map. It answers no query by itself: IndexedCollection decides, and reads the map. */
abstract class MapIndex extends Index<Object> {

  private final MVMap<?, ?> map;

  MapIndex(MVMap<?, ?> map, String name, List<IndexKey> keys, boolean sparse) {
    super(name, keys, sparse);
    this.map = map;
  }

  @Override
  public boolean canHandle(Document query) {
    return false;
  }

  @Override
  public Iterable<Object> getPositions(Document query) {
    throw new UnsupportedOperationException();
  }

  @Override
  public long getCount() {
    return map.sizeAsLong();
  }

  @Override
  public long getDataSize() {
    return getCount();
  }
}
