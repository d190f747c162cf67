import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import java.io.IOException;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import org.h2.mvstore.MVStore;

/** MongoDB's protocol over a file: HOST PORT FILE. Exits when its standard input closes, that is, with its parent. */
public class EmbeddedMongo {

  private static final int RETENTION_MILLISECONDS = 1000; // H2's 45 s would keep some 20 KB for every small write
  private static final int COMPACTION_MILLISECONDS = 2000;

  public static void main(String[] arguments) throws IOException {
    MVStore store = new MVStore.Builder().fileName(arguments[2]).open();
    store.setVersionsToKeep(0);
    store.setRetentionTime(RETENTION_MILLISECONDS);
    DurableBackend backend = new DurableBackend(store);
    backend.version(new OldestSupported());
    MongoServer server = new MongoServer(backend);
    server.bind(arguments[0], Integer.parseInt(arguments[1]));
    Runtime.getRuntime().addShutdownHook(new Thread(() -> close(server, store)));
    System.out.println("READY " + server.getConnectionString());
    while (System.in.read() >= 0) {
      // nothing is ever sent; the end of the stream means that the parent ended
    }
    System.exit(0);
  }

  private static void close(MongoServer server, MVStore store) {
    server.stopListening();
    store.commit();
    store.compactFile(COMPACTION_MILLISECONDS);
    server.shutdownNow();
  }

  /** H2 commits about once a second; a kill would lose writes acknowledged since then. */
  private static class DurableBackend extends H2Backend {

    private static final Set<String> READS =
        Set.of("find", "getmore", "killcursors", "count", "distinct", "hello", "ismaster", "ping", "buildinfo",
            "listcollections", "listindexes", "listdatabases", "serverstatus", "dbstats", "collstats", "endsessions");

    DurableBackend(MVStore store) {
      super(store);
    }

    @Override
    public Document handleMessage(MongoMessage message) {
      Document reply = super.handleMessage(message);
      String command = message.getDocument().keySet().iterator().next();
      if (!READS.contains(command.toLowerCase(Locale.ROOT))) {
        getMvStore().commit();
      }
      return reply;
    }
  }

  /** The library announces wire version 8, which today's drivers refuse. */
  private static class OldestSupported implements MongoVersion {

    @Override
    public List<Integer> getVersionArray() {
      return List.of(4, 4, 0);
    }

    @Override
    public int getWireVersion() {
      return 9;
    }
  }
}
