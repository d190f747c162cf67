import de.bwaldvogel.mongo.MongoCollection;
import de.bwaldvogel.mongo.MongoDatabase;
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.CollectionOptions;
import de.bwaldvogel.mongo.backend.DatabaseResolver;
import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.backend.h2.H2Database;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.exception.MongoServerException;
import de.bwaldvogel.mongo.oplog.NoopOplog;
import de.bwaldvogel.mongo.oplog.Oplog;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import io.netty.channel.Channel;
import java.io.IOException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.BooleanSupplier;
import java.util.function.Supplier;
import org.h2.mvstore.MVMap;
import org.h2.mvstore.MVStore;
import org.h2.mvstore.MVStoreException;

/** MongoDB's protocol over a file: HOST PORT FILE. Exits when its standard input closes, that is, with its parent. */
public class EmbeddedMongo {

  private static final int RETENTION_MILLISECONDS = 1000; // H2's 45 s would keep some 20 KB for every small write
  private static final int COMPACTION_MILLISECONDS = 2000;
  private static final int TIDY_MILLISECONDS = 1000; // of a round
  private static final int TIDY_BYTES = 256 << 10; // rewritten at a time: every write waits meanwhile
  private static final int TIDY_TIMES = 16; // in a round; once under load
  private static final int LEAST_FILL_PERCENT = 60;
  private static final int LEAST_FILL_PERCENT_UNDER_LOAD = 25;
  private static final int LOAD = 20; // writes in a round

  private static volatile boolean isStopping;

  public static void main(String[] arguments) throws IOException {
    MVStore store = new MVStore.Builder().fileName(arguments[2]).autoCommitDisabled().autoCommitBufferSize(0).open();
    store.setVersionsToKeep(0);
    store.setRetentionTime(RETENTION_MILLISECONDS);
    DurableBackend backend = new DurableBackend(store);
    backend.version(new OldestSupported());
    MongoServer server = new MongoServer(backend);
    server.bind(arguments[0], Integer.parseInt(arguments[1]));
    Runtime.getRuntime().addShutdownHook(new Thread(() -> close(server, store)));
    Thread tidying = new Thread(() -> tidy(backend, store), "tidy");
    tidying.setDaemon(true);
    tidying.start();
    System.out.println("READY " + server.getConnectionString());
    while (System.in.read() >= 0) {
      // nothing is ever sent; the end of the stream means that the parent ended
    }
    System.exit(0);
  }

  /** H2 would do it by itself, but commit in the midst of a command. */
  private static void tidy(DurableBackend backend, MVStore store) {
    try {
      while (true) {
        boolean isLoaded = backend.takeWrites() > LOAD;
        int fill = isLoaded ? LEAST_FILL_PERCENT_UNDER_LOAD : LEAST_FILL_PERCENT;
        int times = isLoaded ? 1 : TIDY_TIMES;
        boolean isTidy = false;
        for (int at = 0; at < TIDY_TIMES; at++) {
          Thread.sleep(TIDY_MILLISECONDS / TIDY_TIMES);
          endWith(store);
          isTidy = isTidy || at >= times || !backend.betweenCommands(() -> store.compact(fill, TIDY_BYTES));
        }
        expire(backend);
      }
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
    } catch (MVStoreException failed) {
      failed.printStackTrace();
      endWith(store);
    }
  }

  private static void expire(DurableBackend backend) {
    try {
      backend.expire(Instant.now());
    } catch (MongoServerException failed) { // its collection is being dropped: the next round looks again
      System.err.println("nothing expired: " + failed.getMessage());
    }
  }

  /**
   * Ends the process if its store has closed itself, as H2 does after a write that failed, such as one to a full disk:
   * nothing could be read or written any more. What was acknowledged is in the file, and another process reads it.
   */
  private static void endWith(MVStore store) {
    if (store.isClosed() && !isStopping) {
      System.err.println("the file cannot be written any more");
      Runtime.getRuntime().halt(1);
    }
  }

  private static void close(MongoServer server, MVStore store) {
    isStopping = true;
    server.stopListening();
    store.commit();
    store.compactFile(COMPACTION_MILLISECONDS);
    server.shutdownNow();
  }

  /**
   * Commits each write before it is acknowledged, and never in the midst of another one: a kill leaves documents and
   * their indexes as they were between two commands.
   */
  private static class DurableBackend extends H2Backend {

    private static final Set<String> READS =
        Set.of("find", "getmore", "killcursors", "count", "distinct", "aggregate", "hello", "ismaster", "ping",
            "buildinfo", "listcollections", "listindexes", "listdatabases", "serverstatus", "dbstats", "collstats",
            "endsessions");

    private static final String MAKES_INDEXES = "createindexes"; // commits in between: all of them may be large

    private static final String EXPIRY = "expireAfterSeconds"; // of an index

    private static final int EXPIRED_AT_ONCE = 1000; // documents

    private static final DocumentType DOCUMENTS = new DocumentType();

    private final ReadWriteLock commands = new ReentrantReadWriteLock(); // held by commands to read, by commits to write

    private final AtomicLong writes = new AtomicLong(); // commands since they were last taken

    private final AtomicLong ended = new AtomicLong(); // commands that are done, committed or not

    private long committed; // of those that have ended

    DurableBackend(MVStore store) {
      super(store);
    }

    @Override
    public Document handleMessage(MongoMessage message) {
      String command = message.getDocument().keySet().iterator().next().toLowerCase(Locale.ROOT);
      if (READS.contains(command)) {
        return super.handleMessage(message);
      }
      writes.incrementAndGet();
      Lock lock = command.equals(MAKES_INDEXES) ? commands.writeLock() : commands.readLock();
      return durably(lock, () -> super.handleMessage(message));
    }

    private <T> T durably(Lock lock, Supplier<T> command) {
      T reply;
      long mine;
      lock.lock();
      try {
        reply = command.get();
      } finally {
        mine = ended.incrementAndGet();
        lock.unlock();
      }
      betweenCommands(() -> commit(mine));
      return reply;
    }

    /** Deletes documents whose time has come, by their TTL indexes. MongoDB does it once a minute. */
    void expire(Instant now) {
      for (String name : List.copyOf(listDatabaseNames())) {
        if (resolveDatabase(name) instanceof IndexedDatabase database) {
          for (Document index : database.indexesThatExpire()) {
            while (durably(commands.readLock(), () -> database.expire(index, now)) == EXPIRED_AT_ONCE) {
              // the next ones; others may write in between
            }
          }
        }
      }
    }

    /** One commit is enough for all commands that have ended by then. */
    private boolean commit(long command) {
      if (committed < command) {
        long all = ended.get();
        getMvStore().commit();
        committed = all;
      }
      return true;
    }

    /** Commands that were not reads since the last call. */
    long takeWrites() {
      return writes.getAndSet(0);
    }

    /** Returns the action's result; before and after it every command is done as a whole. */
    boolean betweenCommands(BooleanSupplier action) {
      commands.writeLock().lock();
      try {
        return action.getAsBoolean();
      } finally {
        commands.writeLock().unlock();
      }
    }

    @Override
    protected MongoDatabase openOrCreateDatabase(String name) {
      return new IndexedDatabase(name);
    }

    /** A database with secondary indexes. Its constructor opens those that there are, so it has no fields. */
    private class IndexedDatabase extends H2Database {

      IndexedDatabase(String name) {
        super(name, getMvStore(), getCursorRegistry());
      }

      List<Document> indexesThatExpire() {
        MongoCollection<Object> described = indexes.get();
        return described == null
            ? List.of()
            : described.queryAllAsStream().filter(index -> index.get(EXPIRY) instanceof Number).toList();
      }

      /** Deletes what an index says, EXPIRED_AT_ONCE at most; returns how many. */
      int expire(Document index, Instant now) {
        String namespace = (String) index.get("ns");
        String field = ((Document) index.get("key")).keySet().iterator().next();
        Instant last = now.minusSeconds(((Number) index.get(EXPIRY)).longValue());
        MongoCollection<Object> collection = resolveCollection(namespace.substring(getDatabaseName().length() + 1), false);
        Document expired = new Document(field, new Document("$lt", last));
        return collection == null ? 0 : collection.deleteDocuments(expired, EXPIRED_AT_ONCE, NoopOplog.get());
      }

      @Override
      protected MongoCollection<Object> openOrCreateCollection(String name, CollectionOptions options) {
        MVMap<String, Object> meta = getMvStore().openMap("meta." + getFullCollectionNamespace(name));
        return new IndexedCollection(this, name, options, documents(name), meta, cursorRegistry);
      }

      /** A collection's documents by _id. This map and the one of its metadata are named as by H2Database. */
      private MVMap<Object, Document> documents(String collection) {
        String name = "databases." + getFullCollectionNamespace(collection);
        return getMvStore().openMap(name, new MVMap.Builder<Object, Document>().valueType(DOCUMENTS));
      }

      @Override
      protected Index<Object> openOrCreateUniqueIndex(
          String collection, String name, List<IndexKey> keys, boolean sparse) {
        if (keys.size() > 1 || !keys.get(0).getKey().equals(IdIndex.FIELD)) {
          return super.openOrCreateUniqueIndex(collection, name, keys, sparse);
        }
        return new IdIndex(documents(collection), name, keys);
      }

      @Override
      protected Index<Object> openOrCreateSecondaryIndex(
          String collection, String name, List<IndexKey> keys, boolean sparse) {
        String map = getFullCollectionNamespace(collection) + "._index_" + name;
        MVMap<byte[], Object> entries =
            getMvStore().openMap(map, new MVMap.Builder<byte[], Object>().keyType(OrderedIndex.KEY_TYPE));
        MVMap<String, Boolean> complete = getMvStore().openMap("complete_indexes");
        boolean isComplete = complete.containsKey(map);
        if (!isComplete) {
          entries.clear(); // a kill ended its making
        }
        return new OrderedIndex(entries, name, keys, isComplete, getMvStore()::commit, () -> complete.put(map, true));
      }

      @Override
      public Document handleCommand(
          Channel channel, String command, Document query, DatabaseResolver databases, Oplog oplog) {
        if (command.equalsIgnoreCase("aggregate")
            && query.get("pipeline") instanceof List<?> stages
            && !stages.isEmpty()
            && ((Document) stages.get(0)).get("$match") instanceof Document match) {
          Document wanted = IndexedCollection.withoutIds(match);
          List<Object> rest = new ArrayList<>(stages);
          rest.set(0, new Document("$match", wanted));
          IndexedCollection.Projection projection = null;
          if (wanted.isEmpty() && rest.size() > 1) {
            projection = IndexedCollection.Projection.of(((Document) rest.get(1)).get("$project"));
          }
          if (projection != null) {
            rest.remove(1);
          }
          IndexedCollection.BEGINNING.set(new IndexedCollection.Beginning(match, projection));
          query.put("pipeline", rest);
          query.put("cursor", new Document()); // all is one reply; the server warns of any other, each time
        }
        try {
          return super.handleCommand(channel, command, query, databases, oplog);
        } finally {
          IndexedCollection.BEGINNING.remove();
        }
      }
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
