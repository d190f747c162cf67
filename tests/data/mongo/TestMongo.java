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
public class TestMongo {

  private static final Set<String> READS =
      Set.of("find", "getmore", "killcursors", "count", "distinct", "aggregate", "hello", "ismaster", "ping",
          "buildinfo", "listcollections", "listindexes", "listdatabases", "endsessions");

  public static void main(String[] arguments) throws IOException {
    MVStore store = new MVStore.Builder().fileName(arguments[2]).autoCommitDisabled().open();
    MongoServer server = new MongoServer(new Durable(store).version(new OldestSupported()));
    server.bind(arguments[0], Integer.parseInt(arguments[1]));
    Runtime.getRuntime().addShutdownHook(new Thread(store::commit));
    System.out.println("READY " + server.getConnectionString());
    while (System.in.read() >= 0) {
      // nothing is ever sent; the end of the stream means that the parent ended
    }
    System.exit(0);
  }

  /** Runs one command at a time, and commits each write before it is acknowledged: H2 would do it in the background. */
  private static class Durable extends H2Backend {

    Durable(MVStore store) {
      super(store);
    }

    @Override
    public synchronized Document handleMessage(MongoMessage message) {
      String command = message.getDocument().keySet().iterator().next().toLowerCase(Locale.ROOT);
      Document reply = super.handleMessage(message).cloneDeeply(); // the next update changes stored documents in place
      if (!READS.contains(command)) {
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
